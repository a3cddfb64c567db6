//! Leaders that die while jobs are submitted and run: what was acknowledged ends, and ends once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::until;
use mesh_node::clock::steady;
use serde_json::Value;

use crate::{Ground, PATIENCE, aside, long, text, up};

/// Jobs that are submitted in a round.
const JOBS: usize = 20;
/// Submissions under way at a time.
const AT_A_TIME: usize = 5;
/// Leaders that die in a round, at least.
const KILLS: usize = 5;
/// A submission takes less: so some leaders die before it, some within, and some while the job runs.
const MOST_MS: u64 = 500;

/// A `mesh submit -d` that somebody waits for.
struct Submission {
    number: usize,
    child: Child,
    /// What it prints.
    out: PathBuf,
}

impl Submission {
    /// Submits on a node that does not lead.
    fn begin(ground: &Ground, round: usize, number: usize, random: &mut fastrand::Rng) -> Self {
        let leader = ground.leader();
        let mut hosts: Vec<usize> = (0..ground.hosts.len()).collect();
        hosts.retain(|host| Some(*host) != leader);
        let host = hosts[random.usize(..hosts.len())];
        // What makes two versions of one differ is who made them.
        let job = format!(
            r#"
name = "round-{round}"
run = "mkdir out; echo $MESH_JOB > out/job"
[output]
made-{round} = "out"
[retry]
backoff = "100ms"
"#
        );
        let file = ground.file(host, &job);
        let log = text(file.file_name().unwrap().as_ref()).replace(".toml", "");
        let words = ["submit", text(&file), "-d", "--json"];
        let child = ground.hosts[host].spawn(binary().unwrap(), &words, &log).unwrap();
        let out = aside(&ground.hosts[host], &format!("{log}.out"));
        Self { number, child, out }
    }

    /// Whether it is over, and if so, the id of the job if it was acknowledged.
    fn over(&mut self) -> Option<Option<String>> {
        let status = self.child.try_wait().unwrap()?;
        if !status.success() {
            return Some(None);
        }
        let answer: Value = serde_json::from_slice(&fs::read(&self.out).unwrap()).unwrap();
        Some(Some(answer["item"]["id"].as_str().unwrap().to_owned()))
    }
}

/// Submits all jobs of a round while leaders die. A submission that was not acknowledged is tried again, as a
/// person would: whether the first had an effect nobody knows. The ids of what was acknowledged.
fn submit_all(ground: &mut Ground, round: usize, random: &mut fastrand::Rng) -> BTreeSet<String> {
    let mut waiting: Vec<usize> = (0..JOBS).collect();
    let mut under_way: Vec<Submission> = Vec::new();
    let mut acknowledged = BTreeSet::new();
    let (mut kills, mut tries) = (0, 0);
    let begun = steady();
    while acknowledged.len() < JOBS || kills < KILLS {
        assert!(begun.elapsed() < 2 * PATIENCE, "{} of {JOBS} acknowledged", acknowledged.len());
        while under_way.len() < AT_A_TIME
            && let Some(number) = waiting.pop()
        {
            under_way.push(Submission::begin(ground, round, number, random));
            tries += 1;
        }
        std::thread::sleep(Duration::from_millis(random.u64(..MOST_MS)));
        if let Some(leader) = ground.leader() {
            // Its tasks go on without it, or are left without anybody who looks after them.
            match random.bool() {
                true => ground.hosts[leader].kill_node().unwrap(),
                false => ground.hosts[leader].kill().unwrap(),
            }
            kills += 1;
            up(&mut ground.hosts[leader]);
        }
        let mut left = Vec::new();
        for mut one in under_way {
            match one.over() {
                None => left.push(one),
                Some(None) => waiting.push(one.number),
                Some(Some(id)) => assert!(acknowledged.insert(id), "two jobs have one id"),
            }
        }
        under_way = left;
    }
    println!("round {round}: {JOBS} jobs in {tries} submissions, {kills} leaders died");
    acknowledged
}

/// Every job of a round, acknowledged or not, has ended once: it is done, and has made one version.
fn all_ended_once(ground: &Ground, round: usize, acknowledged: &BTreeSet<String>) {
    let name = format!("round-{round}");
    let mut last = Vec::new();
    let over = until(PATIENCE, || {
        last = ground.jobs(0);
        last.retain(|job| job["name"] == name.as_str());
        last.iter().all(|job| job["is_final"] == true).then_some(())
    });
    assert!(over.is_some(), "not over: {last:?}");
    let id = |job: &Value| job["id"].as_str().unwrap().to_owned();
    let ids: BTreeSet<String> = last.iter().map(id).collect();
    let lost: Vec<&String> = acknowledged.difference(&ids).collect();
    assert!(lost.is_empty(), "acknowledged, and nowhere: {lost:?}");
    for job in &last {
        assert_eq!(job["state"], "done", "{job}");
    }

    let made = format!("made-{round}");
    let mut by = BTreeMap::<String, usize>::new();
    for version in ground.data(0, &["log", &made]).as_array().unwrap() {
        let shown = ground.data(0, &["show", &format!("{made}@{}", version["version"])]);
        *by.entry(shown["lineage"]["job"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(by.keys().cloned().collect::<BTreeSet<String>>(), ids, "whose versions there are");
    assert!(by.values().all(|count| *count == 1), "some made more than one: {by:?}");
    // The long run must not fill the disk.
    ground.data(0, &["rm", &made, "--all", "--yes"]);
}

#[test]
fn every_acknowledged_job_ends_once_however_often_the_leader_dies() {
    let mut ground = Ground::short(3);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..if long() { 200 } else { 3 } {
        let acknowledged = submit_all(&mut ground, round, &mut random);
        ground.settle().unwrap();
        all_ended_once(&ground, round, &acknowledged);
    }
    ground.calm();
}
