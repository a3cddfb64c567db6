//! `mesh status`: what this node is and does.

use crate::answers::Status;
use crate::client::Answer;
use crate::context::{Context, note, print, print_json};
use crate::report::Outcome;
use crate::view::{Paint, bytes, clean, count, facts, span};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh status                                  for people
  mesh status --json | jq -r .item.role        for scripts: voter, learner, watcher, joining
  mesh status --json | jq .item.is_leader      whether this node leads
  mesh status --json | jq -r .item.api_address where its HTTP API is on TCP, if it is";

/// What to know about a node that was removed.
const REMOVED: &str = "This node was removed from its mesh, and hears nothing of it any more. \
                       Next: mesh down, then join from a new directory: mesh join TICKET --dir DIR.";

/// What to know about a node of an epoch that has ended.
const RECOVERED: &str = "The mesh was recovered without this node, and is in a later epoch. \
                         Next: mesh down, then mesh up --rejoin.";

/// An answer older than this is said to be old.
pub(crate) const OLD_MS: u64 = 3000;

pub(crate) async fn run(context: &Context) -> Outcome {
    let answer = context.api()?.get("/v1/status").await?;
    if context.json {
        return print_json(answer.json());
    }
    let status: Status = answer.item()?;
    match (status.removed, status.later_epoch) {
        (true, _) => note(REMOVED),
        (false, Some(_)) => note(RECOVERED),
        (false, None) => warn_of_age(&answer),
    }
    print(&text(&status, Paint::stdout()))
}

/// Says on standard error that an answer may be out of date.
pub(crate) fn warn_of_age(answer: &Answer) {
    match answer.age_ms() {
        None => {
            let last =
                answer.mesh_time().map(|time| format!(" The last it knows is of {}.", clean(time)));
            let cause = "the node has heard no leader since it started.";
            note(&format!("This may be out of date: {cause}{}", last.unwrap_or_default()));
        }
        Some(age_ms) if age_ms >= OLD_MS => {
            note(&format!("This is {} old: the node has not heard a leader since.", span(age_ms)));
        }
        Some(_) => {}
    }
}

fn text(status: &Status, paint: Paint) -> String {
    let s = status;
    let role = if s.is_leader { "leader".to_owned() } else { s.role.clone() };
    let mut flags = vec![role];
    flags.extend(s.worker.then(|| "worker (without the party's signing key)".to_owned()));
    flags.extend(s.removed.then(|| "removed".to_owned()));
    flags.extend((s.leaving && !s.removed).then(|| "leaving".to_owned()));
    flags.extend(s.drained.then(|| "drained (takes no new work)".to_owned()));
    let leader =
        if s.leader.shown().is_empty() { "none known".into() } else { s.leader.shown().to_owned() };
    let some = |n: u64, text: String| if n > 0 { text } else { String::new() };
    facts(
        &[
            ("node", format!("{} ({})", s.name, s.id.get(..16).unwrap_or(&s.id))),
            ("party", s.party.shown().to_owned()),
            ("role", flags.join(", ")),
            ("leader", leader),
            (
                "mesh",
                format!(
                    "{}, epoch {}, level {}",
                    s.mesh.get(..16).unwrap_or(&s.mesh),
                    s.epoch,
                    s.level
                ),
            ),
            ("agreed", format!("index {} in term {}, mesh time {}", s.index, s.term, s.mesh_time)),
            (
                "members",
                format!(
                    "{}: {}, {}",
                    s.members,
                    count(s.voters as usize, "voter"),
                    count(s.learners as usize, "learner")
                ),
            ),
            ("data", s.data_addresses.join(" ")),
            ("overlay", s.overlay_addresses.join(" ")),
            ("api", s.api_address.clone().unwrap_or_default()),
            ("process", format!("{}, up for {}, version {}", s.pid, span(s.uptime_ms), s.version)),
            ("disk", some(s.disk_bytes, bytes(s.disk_bytes))),
            (
                "fsync p99",
                some(s.fsync_p99_us, format!("{:.1} ms", s.fsync_p99_us as f64 / 1000.0)),
            ),
            ("tick", some(s.tick_ms, format!("{} ms", s.tick_ms))),
        ],
        paint,
    )
}
