"""LangChain's and LangGraph's agents: a native schema at the end, whole and streamed, over chats and responses."""

from typing import Annotated, Any, TypedDict

from addition_task import Task, Total, add, run, url
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition

TOOLS = [tool(add)]
LIMITS: Any = {"recursion_limit": 60}


def model(**fields: Any) -> ChatOpenAI:
    return ChatOpenAI(model="scripted", base_url=url, api_key="unused", max_retries=0, **fields)


def agent(**fields: Any) -> Any:
    return create_agent(model(**fields), TOOLS, response_format=ProviderStrategy(Total))


def asked(task: Task) -> Any:
    return {"messages": [HumanMessage(task.question)]}


def whole(task: Task) -> Any:
    return agent().invoke(asked(task), LIMITS)["structured_response"]


async def streamed(task: Task) -> Any:
    state: Any = None
    async for kind, part in agent(streaming=True).astream(asked(task), LIMITS, stream_mode=["messages", "values"]):
        state = part if kind == "values" else state
    return state["structured_response"]


def responses(task: Task) -> Any:
    return agent(use_responses_api=True).invoke(asked(task), LIMITS)["structured_response"]


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


async def graph(task: Task) -> Any:
    """A graph of a model and its tools, as LangGraph's tutorials build it; every message of the model is streamed."""
    bound = model(streaming=True).bind_tools(TOOLS, response_format=Total, strict=True)
    built = StateGraph(State)
    built.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    built.add_node("tools", ToolNode(TOOLS))
    built.add_edge(START, "model")
    built.add_conditional_edges("model", tools_condition)
    built.add_edge("tools", "model")
    state = await built.compile().ainvoke({"messages": [HumanMessage(task.question)]}, LIMITS)
    return Total.model_validate_json(state["messages"][-1].text)


run(langchain=whole, langchain_streamed=streamed, langchain_responses=responses, langgraph=graph)
