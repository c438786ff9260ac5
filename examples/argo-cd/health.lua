-- The health of an LLMDeployment for Argo CD, by its conditions as kstatus reads them. It goes into the ConfigMap
-- argocd-cm as resource.customizations.health.baton.dev_LLMDeployment: see argocd-cm.yaml.
local health = {status = "Progressing", message = "waits for the Baton operator to look at it"}
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.observedGeneration ~= nil and obj.metadata.generation ~= nil
    and status.observedGeneration < obj.metadata.generation then
  health.message = "waits for the Baton operator to look at the last edit"
  return health
end
local found = {}
for _, condition in ipairs(status.conditions) do
  found[condition.type] = condition
end
local ready, stalled, reconciling = found.Ready, found.Stalled, found.Reconciling
local function tell(verdict, condition)
  return {status = verdict, message = condition.reason .. ": " .. (condition.message or "")}
end
if stalled ~= nil and stalled.status == "True" then
  return tell("Degraded", stalled) -- somebody has to act
end
if reconciling ~= nil and reconciling.status == "True" then
  return tell("Progressing", reconciling) -- waiting is enough
end
if ready == nil then
  return health
end
if ready.status == "True" then
  return tell("Healthy", ready)
end
if ready.reason == "ScaledToZero" then
  return tell("Suspended", ready)
end
return tell("Progressing", ready)
