// Figures as people read them. What is not known is a dash, never zero.

export const DASH = "–";

export function seconds(value) {
  if (value === null || value === undefined) return DASH;
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (value < 120) return `${Number(value.toPrecision(3))} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function nanoseconds(value) {
  return seconds(value / 1e9);
}

export function percent(share) {
  if (share === null || share === undefined) return DASH;
  const value = share * 100;
  return `${Number(value.toFixed(1))} %`;
}

export function count(value) {
  if (value === null || value === undefined) return DASH;
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (value >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (value >= 1000 && place < units.length - 1) [value, place] = [value / 1000, place + 1];
  return `${place ? value.toPrecision(3) : value} ${units[place]}`;
}

export function time(at) {
  return new Date(at * 1e3).toLocaleTimeString();
}

export function moment(at) {
  const date = new Date(at * 1e3);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString() : date.toLocaleString();
}

export function ago(at, now) {
  const passed = Math.max(0, now - at);
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  return `${Math.round(passed / 3600)} h ago`;
}

export function tenantName(name) {
  return name === "" ? "(no key)" : name;
}
