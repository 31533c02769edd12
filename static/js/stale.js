// The banner of a live cluster that is out of sync: since when, the reason, and the age of the data.
import { clockOfMinutes, updateTimes } from "./draw.js";
import { liveOfPage } from "./live.js";

const banner = document.getElementById("stale");
const clock = banner.querySelector("[data-clock]");
const facts = banner.querySelector("[data-facts]");

function showClock(iso) {
  clock.dataset.clock = iso;
  clock.textContent = clockOfMinutes(iso);
}

function show(document_) {
  banner.hidden = !document_.staleSince;
  if (document_.staleSince) showClock(document_.staleSince);
  banner.querySelector("[data-reason]").textContent = document_.reason ?? "";
  facts.hidden = !document_.factsAt;
  if (document_.factsAt) {
    facts.querySelector("time").dateTime = document_.factsAt;
    updateTimes(facts);
  }
}

if (clock.dataset.clock) showClock(clock.dataset.clock);
liveOfPage().subscribe(banner.dataset.topic, show);
