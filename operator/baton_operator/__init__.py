"""The control plane: LLMDeployment files and resources become pools of workers behind a gateway. No tensors here."""
