"""The laptop runtime: an LLMDeployment file becomes local processes. Also the command line tool `baton`."""
