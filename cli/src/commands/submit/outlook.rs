//! What would come of a job, as `mesh plan` shows it.

use serde_json::Value;

use crate::answers::{Outlook, called, plain};
use crate::view::{Column, Paint, Table, bytes, clean, cores, count};

/// Where it would go, what moves, and who makes room.
pub(super) fn text(outlook: &Outlook, width: Option<usize>, paint: Paint) -> String {
    let mut text = format!("{}\n", clean(&verdict(outlook)));
    if !outlook.places.is_empty() {
        text += &format!("\n{}", places(outlook).render(width, paint));
    }
    if !outlook.victims.is_empty() {
        let mut table = Table::new(&[
            Column::new("MAKES ROOM").least(12),
            Column::new("TASK").right(),
            Column::new("NODE").least(8),
        ]);
        for victim in &outlook.victims {
            table.row([
                called(&victim.job, &victim.name).into(),
                victim.task.to_string().into(),
                victim.node.shown().into(),
            ]);
        }
        text += &format!("\n{}", table.render(width, paint));
    }
    text
}

fn verdict(outlook: &Outlook) -> String {
    let name = if outlook.name.is_empty() { "the job" } else { &outlook.name };
    let mut text = match (outlook.placed, &outlook.why, outlook.victims.len()) {
        (true, None, 0) => return format!("{name} would start now"),
        (true, None, tasks) => {
            let (tasks, have) = (count(tasks, "task"), if tasks == 1 { "has" } else { "have" });
            return format!("{name} would start once {tasks} {have} made room");
        }
        (true, Some(why), _) => {
            let tasks = count(outlook.places.len(), "task");
            format!("{tasks} of {name} would start now, the others would wait: {why}")
        }
        (false, Some(why), _) => format!("{name} would wait: {why}"),
        (false, None, _) => format!("{name} would wait"),
    };
    match outlook.ahead {
        0 => {}
        1 => text += "; 1 job is ahead of it",
        ahead => text += &format!("; {ahead} jobs are ahead of it"),
    }
    text
}

fn places(outlook: &Outlook) -> Table {
    let mut table = Table::new(&[
        Column::new("TASK").right(),
        Column::new("NODE").least(8),
        Column::new("CPU").right().worth(3),
        Column::new("MEM").right().worth(2),
        Column::new("GPU").least(6).worth(4),
        Column::new("FETCHES").right().worth(5),
    ]);
    for place in &outlook.places {
        table.row([
            place.task.to_string().into(),
            place.node.shown().into(),
            place.cpu_milli.map(cores).unwrap_or_default().into(),
            place.memory_bytes.map(bytes).unwrap_or_default().into(),
            gpus(&place.gpus).into(),
            place.fetch_bytes.map(fetched).unwrap_or_default().into(),
        ]);
    }
    table
}

/// By name where they are named, else how many.
fn gpus(gpus: &Value) -> String {
    match gpus {
        Value::Array(named) if named.iter().all(Value::is_string) => plain(gpus),
        Value::Array(unnamed) => unnamed.len().to_string(),
        Value::Number(n) if n.as_u64() == Some(0) => String::new(),
        other => plain(other),
    }
}

fn fetched(size: u64) -> String {
    if size == 0 { "nothing".into() } else { bytes(size) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(outlook: Value) -> String {
        text(&serde_json::from_value(outlook).unwrap(), None, Paint(false))
    }

    #[test]
    fn a_plan_says_where_what_moves_and_who_makes_room() {
        let outlook = json!({
            "name": "train", "placed": true, "impossible": null, "ahead": 0, "why": null,
            "places": [
                { "task": 0, "node": "alpha", "cpu_milli": 1500, "memory_bytes": 8_589_934_592u64,
                  "gpus": ["A100"], "fetch_bytes": 11_639_193u64 },
                { "task": 1, "node": "beta", "cpu_milli": 2000, "memory_bytes": null, "gpus": 0, "fetch_bytes": 0 },
            ],
            "victims": [{ "job": "7f3a9c1e".repeat(4), "name": "sweep", "task": 4, "node": "beta" }],
        });
        assert_eq!(
            shown(outlook),
            "train would start once 1 task has made room\n\
             \n\
             TASK  NODE   CPU      MEM  GPU    FETCHES\n\
             \x20  0  alpha  1.5  8.0 GiB  A100  11.1 MiB\n\
             \x20  1  beta     2        -  -      nothing\n\
             \n\
             MAKES ROOM        TASK  NODE\n\
             sweep (7f3a9c1e)     4  beta\n"
        );
    }

    #[test]
    fn a_plan_says_why_a_job_would_wait() {
        let waits = json!({ "name": "train", "placed": false, "ahead": 2, "why": "no node has 8 GPUs free" });
        let said = "train would wait: no node has 8 GPUs free; 2 jobs are ahead of it\n";
        assert_eq!(shown(waits), said);
        assert_eq!(shown(json!({ "placed": true })), "the job would start now\n");
        let some = json!({
            "name": "sweep", "placed": true, "why": "no room", "ahead": 0,
            "places": [{ "task": 0, "node": "alpha", "gpus": 2 }],
        });
        let said = shown(some);
        assert!(
            said.starts_with("1 task of sweep would start now, the others would wait: no room\n"),
            "{said}"
        );
        assert!(said.ends_with("   0  alpha    -    -  2          -\n"), "{said}");
        assert_eq!(shown(json!({ "ahead": 1 })), "the job would wait; 1 job is ahead of it\n");
    }
}
