//! `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever restarts what does not answer. Who asks the last two
//! on TCP without a token is told yes or no (`guard.rs`), all others why.
//!
//! Names begin with `mesh_` and carry base units. The only labels are names of members, of whom there is a
//! bound, and numbers of this node's GPUs.

use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde_json::json;

use super::Api;
use super::answer::{Answer, Problem, age, item};
use super::route::{Form, Route};
use crate::engine::LEADER_UNHEARD;
use crate::handle::Part;

/// Links that are listed one by one.
const MAX_LINKS: usize = 64;
/// A seat that heard no leader for this long is not ready: on a LAN one that died was replaced long before …
const UNREADY: Duration = Duration::from_secs(5);
/// … and on a slow wire within so many of raft's ticks.
const UNREADY_TICKS: u32 = 10;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/metrics", "Measurements, for Prometheus.", metrics).form(Form::Text),
        Route::get("/healthz", "Answers if the process does; on TCP without a token, too.", health),
        Route::get(
            "/readyz",
            "Whether this node is a member and up to date; on TCP without a token, too.",
            ready,
        ),
    ]
}

async fn health(State(api): State<Api>) -> Answer {
    Ok(item(&api, json!({ "ok": true })))
}

async fn ready(State(api): State<Api>) -> Answer {
    let pulse = api.pulse();
    let not = |cause: String| {
        Err(Problem::unavailable("this node is not ready", cause, "mesh status; then mesh doctor"))
    };
    if pulse.part == Part::Joining {
        return not("it was admitted and has no state yet".into());
    }
    if !api.roster().is_member(api.whoami.node) {
        return not("it is not a member, or is leaving".into());
    }
    match age(&pulse) {
        Some(age) if age <= patience(pulse.part, pulse.tick) => {
            Ok(item(&api, json!({ "ready": true })))
        }
        Some(age) => not(format!("it has not known itself up to date for {} s", age.as_secs())),
        None => not("it has heard no leader and no voter since it was started".into()),
    }
}

/// For how long a node counts as up to date after it last knew that it was.
fn patience(part: Part, tick: Duration) -> Duration {
    match part {
        Part::Voter | Part::Learner => UNREADY.max(tick * UNREADY_TICKS),
        // It hears of the voters every five seconds.
        Part::Watcher | Part::Joining => LEADER_UNHEARD,
    }
}

async fn metrics(State(api): State<Api>) -> Answer {
    let mut page = Page::default();
    mesh(&mut page, &api);
    links(&mut page, &api);
    data(&mut page, &api);
    process(&mut page);
    gpus(&mut page, &api);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], page.text).into_response())
}

fn data(page: &mut Page, api: &Api) {
    let sent = api.data.sent_bytes.load(Ordering::Relaxed);
    let help = "Bytes of chunks that were sent to others.";
    page.one("mesh_chunk_sent_bytes_total", "counter", help, sent);
    let fetched = api.data.fetched_bytes.load(Ordering::Relaxed);
    let help = "Bytes of chunks that came from others.";
    page.one("mesh_chunk_fetched_bytes_total", "counter", help, fetched);
}

fn mesh(page: &mut Page, api: &Api) {
    let (pulse, roster) = (api.pulse(), api.roster());
    page.begin("mesh_build_info", "gauge", "The version of mesh.");
    page.line("mesh_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.one("mesh_index", "gauge", "The last index applied here.", pulse.index);
    page.one("mesh_commit_index", "gauge", "What is known to be committed.", pulse.commit);
    page.one("mesh_term", "gauge", "Raft's term.", pulse.term);
    page.one("mesh_is_leader", "gauge", "Whether this node leads.", u8::from(pulse.is_leader()));
    let has_leader = pulse.is_leader() || pulse.leader.is_some();
    page.one("mesh_has_leader", "gauge", "Whether a leader is known.", u8::from(has_leader));
    let members = roster.members.values().filter(|place| !place.leaving).count();
    page.one("mesh_members", "gauge", "Members of the mesh.", members);
    page.one("mesh_voters", "gauge", "Members that vote.", roster.voters.len());
    let help = "How long ago this node last knew itself up to date; infinite if never.";
    let age = age(&pulse).map_or(f64::INFINITY, |age| age.as_secs_f64());
    page.one("mesh_state_age_seconds", "gauge", help, Number(age));
    let peers = api.hub.overlay().map_or(0, |overlay| overlay.peers());
    page.one("mesh_overlay_peers", "gauge", "Connections of the overlay.", peers);
    let uptime = Number(api.started.elapsed().as_secs_f64());
    page.one("mesh_uptime_seconds", "gauge", "For how long this node has run.", uptime);
}

fn links(page: &mut Page, api: &Api) {
    let links = api.net.links();
    page.one("mesh_data_links", "gauge", "Connections of the data plane.", links.len());
    let sum = |of: fn(&mesh_transport::net::Link) -> u64| -> u64 { links.iter().map(of).sum() };
    page.one(
        "mesh_data_link_sent_bytes",
        "gauge",
        "Sent over the links that stand now.",
        sum(|l| l.sent_bytes),
    );
    page.one(
        "mesh_data_link_received_bytes",
        "gauge",
        "Received over the links that stand now.",
        sum(|link| link.received_bytes),
    );
    page.begin("mesh_link_rtt_seconds", "gauge", "The time to a node and back.");
    let roster = api.roster();
    for link in links.iter().take(MAX_LINKS) {
        let name = roster.members.get(&link.node).map(|place| place.name.to_string());
        let name = name.unwrap_or_else(|| link.node.short());
        page.line("mesh_link_rtt_seconds", &[("node", &name)], Number(link.rtt.as_secs_f64()));
    }
}

fn process(page: &mut Page) {
    if let Some(bytes) = resident_bytes() {
        page.one(
            "mesh_process_resident_memory_bytes",
            "gauge",
            "Memory that this process holds.",
            bytes,
        );
    }
    if let Some(used) = cpu_time() {
        let help = "Processor time that this process has used.";
        page.one("mesh_process_cpu_seconds_total", "counter", help, Number(used.as_secs_f64()));
    }
}

/// What the kernel says that this process holds in memory.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn cpu_time() -> Option<Duration> {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike as _;
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Some(Duration::from_micros(u64::try_from(micros).ok()?))
}

fn gpus(page: &mut Page, api: &Api) {
    let me = api.whoami.node;
    let own = api.hub.look(|view, now| {
        let sight = view.get(me, now)?;
        Some((sight.record.facts.gpus.clone(), sight.load.gpus.clone()))
    });
    let Some((facts, loads)) = own else { return };
    if facts.is_empty() {
        return;
    }
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(usize) -> Option<f64>| {
        page.begin(name, "gauge", help);
        for (at, gpu) in facts.iter().enumerate() {
            if let Some(value) = value(at) {
                let number = at.to_string();
                page.line(name, &[("gpu", &number), ("model", gpu.name.as_str())], Number(value));
            }
        }
    };
    let load = |at: usize| loads.get(at);
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; memory is whole MiB")]
    let float = |bytes: u64| bytes as f64;
    gauge("mesh_gpu_memory_bytes", "Memory of a GPU.", &|at| {
        facts.get(at).map(|g| float(g.memory_bytes()))
    });
    gauge("mesh_gpu_memory_used_bytes", "Memory of a GPU in use.", &|at| {
        load(at)?.memory_used_bytes().map(float)
    });
    gauge("mesh_gpu_utilisation_ratio", "Share of time in which a GPU computed.", &|at| {
        load(at)?.utilisation.map(|ratio| ratio.get())
    });
    gauge("mesh_gpu_temperature_celsius", "Temperature of a GPU.", &|at| {
        load(at)?.temperature_c.map(f64::from)
    });
    gauge("mesh_gpu_power_watts", "What a GPU draws.", &|at| load(at)?.power_w.map(f64::from));
    gauge("mesh_gpu_healthy", "Whether nothing is wrong with a GPU.", &|at| {
        load(at).map(|load| f64::from(u8::from(load.health.is_good())))
    });
}

/// A number as Prometheus reads it.
struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == f64::INFINITY { f.write_str("+Inf") } else { self.0.fmt(f) }
    }
}

/// Text in Prometheus' form.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.begin(name, kind, help);
        self.line(name, &[], value);
    }
}

/// A label's value. What comes from another machine may hold anything.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => safe.push_str("\\\\"),
            '"' => safe.push_str("\\\""),
            '\n' => safe.push_str("\\n"),
            c if c.is_control() => safe.push('?'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_inside_its_label() {
        let mut page = Page::default();
        page.line("x", &[("node", "a\"} 1\nmesh_term 9\\")], Number(f64::INFINITY));
        assert_eq!(page.text, "x{node=\"a\\\"} 1\\nmesh_term 9\\\\\"} +Inf\n");
    }

    #[test]
    fn a_seat_is_ready_for_a_few_elections_after_it_lost_its_leader() {
        let of = |part, ms| patience(part, Duration::from_millis(ms)).as_secs();
        assert_eq!((of(Part::Voter, 50), of(Part::Learner, 50)), (5, 5));
        assert_eq!(of(Part::Voter, 1000), 10);
        assert_eq!(of(Part::Watcher, 50), 12);
    }

    #[test]
    fn this_process_holds_memory_and_has_used_a_processor() {
        assert!(resident_bytes().unwrap() > 1 << 20);
        assert!(cpu_time().is_some());
    }
}
