// Tenants: what each one has running and waiting, and how much of its limits it has taken.

import { element, find, meter, replace, table } from "./dom.js";
import { count, percent, tenantName } from "./format.js";

const LIMITS = {
  requestsPerMinute: "requests a minute", inputTokensPerMinute: "prompt tokens a minute",
  outputTokensPerMinute: "answer tokens a minute", maxConcurrent: "sequences at a time",
  tokensPerMonth: "tokens this month",
};

export function showTenants(data) {
  const total = data.tenants.reduce((sum, tenant) => sum + tenant.running + tenant.waiting, 0);
  const rows = data.tenants.map((tenant) => {
    const share = total ? (tenant.running + tenant.waiting) / total : null;
    return [
      tenantName(tenant.name),
      data.viewer.sees_all ? meter(share, percent(share)) : null,
      count(tenant.running),
      count(tenant.waiting),
      tenant.limits.length ? element("ul", { class: "limits" }, tenant.limits.map(limit)) : "no limit",
    ].filter((cell, place) => data.viewer.sees_all || place !== 1);
  });
  const columns = ["Tenant", "Share", "Running", "Waiting", "Taken of its limits"];
  const shown = data.viewer.sees_all ? columns : columns.filter((column) => column !== "Share");
  replace(find("tenant-list"), table("List of tenants", shown, rows, "No tenant has sent anything lately."));
}

function limit(entry) {
  const share = entry.most ? (entry.used ?? 0) / entry.most : 0;
  const used = entry.used === null ? "unknown" : count(Math.round(entry.used));
  const words = `${used} of ${count(entry.most)} ${LIMITS[entry.limit] ?? entry.limit}`;
  return element("li", {}, meter(share, words, 0.999));
}
