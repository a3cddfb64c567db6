//! What is seen of the three nodes and of their training: who is up, who leads, how far they are, what happened when.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::course::{Course, Participant};
use super::{event, millis};
use crate::answers::Status;
use crate::context::{print, print_json};
use crate::report::Report;

/// How events are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// As a live picture.
    Picture,
    /// One line each.
    Lines,
    /// One object each.
    Json,
}

/// One node, as last seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) name: &'static str,
    /// Whose it is.
    pub(super) party: &'static str,
    /// It was killed, and has not come back.
    pub(super) is_killed: bool,
    /// What it said last; `None` before it starts and after it dies.
    pub(super) status: Option<Status>,
}

impl Seen {
    /// `leader`, its role, or why it has none.
    pub(super) fn part(&self) -> &str {
        match &self.status {
            None if self.is_killed => "killed",
            None => "not up",
            Some(status) if status.is_leader => "leader",
            Some(status) => &status.role,
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) at_ms: u64,
    pub(super) kind: &'static str,
    pub(super) text: String,
}

/// Everything that is known.
#[derive(Debug)]
pub(super) struct Scene {
    mode: Mode,
    began: Instant,
    pub(super) nodes: [Seen; 3],
    pub(super) events: Vec<Event>,
    /// How the training goes; `None` before it was submitted.
    pub(super) course: Option<Course>,
    /// How many rounds there will be.
    pub(super) rounds: u64,
    /// The round that stood when the leader was killed.
    pub(super) killed_at: Option<u64>,
    pub(super) failover_ms: Option<u64>,
    /// Which share of the test set the last model recognises, once that was measured.
    pub(super) accuracy: Option<f64>,
    pub(super) is_over: bool,
    /// What was told of parties, once each: party and standing.
    told: BTreeSet<(String, String)>,
}

impl Scene {
    /// Nothing was seen yet. Nodes have a name and a party.
    pub(super) fn new(
        mode: Mode,
        nodes: [(&'static str, &'static str); 3],
        rounds: u64,
        began: Instant,
    ) -> Self {
        Self {
            mode,
            began,
            nodes: nodes.map(|(name, party)| Seen { name, party, ..Seen::default() }),
            events: Vec::new(),
            course: None,
            rounds,
            killed_at: None,
            failover_ms: None,
            accuracy: None,
            is_over: false,
            told: BTreeSet::new(),
        }
    }

    /// Whether somebody watches the picture.
    pub(super) fn is_watched(&self) -> bool {
        self.mode == Mode::Picture
    }

    pub(super) fn elapsed_ms(&self) -> u64 {
        millis(self.began)
    }

    /// Notes an event, and shows it where events are lines.
    pub(super) fn says(
        &mut self,
        kind: &'static str,
        node: Option<usize>,
        text: String,
    ) -> Result<(), Report> {
        self.tells(kind, node, text, &[])
    }

    /// The same, with figures for those who read JSON.
    fn tells(
        &mut self,
        kind: &'static str,
        node: Option<usize>,
        text: String,
        figures: &[(&str, Value)],
    ) -> Result<(), Report> {
        let at_ms = self.elapsed_ms();
        match self.mode {
            Mode::Picture => {}
            Mode::Lines => {
                print(&format!("{:>7.2} s  {text}\n", at_ms as f64 / 1000.0))?;
            }
            Mode::Json => {
                let mut event = event(kind, node.map(|at| self.nodes[at].name), at_ms, &text);
                for (name, figure) in figures {
                    event[*name] = figure.clone();
                }
                print_json(&event)?;
            }
        }
        self.events.push(Event { at_ms, kind, text });
        Ok(())
    }

    /// Takes in what a node says of itself, and tells what is new about it.
    pub(super) fn looked(&mut self, at: usize, status: Option<Status>) -> Result<(), Report> {
        let name = self.nodes[at].name;
        let before = self.nodes[at].status.take();
        let was = before.as_ref().map(|status| (status.role.clone(), status.is_leader));
        self.nodes[at].status = status;
        let Some(now) = &self.nodes[at].status else { return Ok(()) };
        self.nodes[at].is_killed = false;
        let (role, leads, term) = (now.role.clone(), now.is_leader, now.term);
        let (was_role, led) = was.unwrap_or_default();
        if leads && !led {
            self.says("leader", Some(at), format!("{name} leads in term {term}"))?;
        } else if role != was_role && !role.is_empty() {
            self.says("role", Some(at), format!("{name} is {}", with_article(&role)))?;
        }
        Ok(())
    }

    /// Takes in how the training goes, and tells what is new about it. A node that is behind another tells nothing new.
    pub(super) fn followed(&mut self, course: Course) -> Result<(), Report> {
        let before = self.course.take().unwrap_or_default();
        if course.round < before.round || (before.verdict.is_some() && course.verdict.is_none()) {
            self.course = Some(before);
            return Ok(());
        }
        if let Some(now) = course.coordinator.clone()
            && before.coordinator.as_ref() != Some(&now)
        {
            let at = self.nodes.iter().position(|node| node.name == now);
            self.says("coordinator", at, format!("{now} coordinates the training"))?;
        }
        let last = before.curve.last().map(|point| point.round);
        for point in course.curve.iter().filter(|point| last.is_none_or(|last| point.round > last))
        {
            let (round, all, accuracy) = (point.round, self.rounds, point.accuracy());
            let worth = accuracy.map(|share| format!(", accuracy {}", percent(share)));
            let text = format!("round {round} of {all}{}", worth.unwrap_or_default());
            let figures = [("round", json!(round)), ("accuracy", json!(accuracy))];
            self.tells("round", None, text, &figures)?;
        }
        for one in &course.participants {
            self.judged(one)?;
        }
        self.course = Some(course);
        Ok(())
    }

    /// Tells how a party stands, once for each way to stand.
    fn judged(&mut self, one: &Participant) -> Result<(), Report> {
        let party = &one.party;
        let text = match one.standing.as_str() {
            "slow" => format!("{party} is slow: {} ms a round", one.whole_ms()),
            "late" => format!("updates of {party} come late, and count less"),
            "dropped" => format!("rounds do not wait for {party} any longer"),
            "refused" => format!("an update of {party} is refused"),
            // Only of one who was away is it worth saying.
            "good" if self.told.contains(&(party.clone(), "dropped".into())) => {
                format!("{party} takes part again")
            }
            _ => return Ok(()),
        };
        if !self.told.insert((party.clone(), one.standing.clone())) {
            return Ok(());
        }
        let at = self.nodes.iter().position(|node| node.party == party);
        self.tells("standing", at, text, &[("standing", json!(one.standing))])
    }

    /// How many rounds are in the model that stands.
    pub(super) fn committed(&self) -> Option<u64> {
        self.course.as_ref()?.round
    }

    /// Whether so many rounds are committed: that many, or why there will never be.
    pub(super) fn reached(&self, round: u64) -> Option<Result<u64, String>> {
        match (self.committed(), self.course.as_ref()?.ending()) {
            (Some(committed), _) if committed >= round => Some(Ok(committed)),
            (_, Some(Err(why))) => Some(Err(why)),
            (_, Some(Ok(()))) => Some(Err(format!("it ended before round {round}"))),
            (_, None) => None,
        }
    }

    /// How the training ended, if it has.
    pub(super) fn ended(&self) -> Option<Result<(), String>> {
        self.course.as_ref()?.ending()
    }

    /// The accuracy that was last measured, by all parties together.
    pub(super) fn last_accuracy(&self) -> Option<f64> {
        self.course.as_ref()?.curve.iter().rev().find_map(super::course::Point::accuracy)
    }

    pub(super) fn killed(&mut self, at: usize) {
        self.nodes[at].is_killed = true;
        self.nodes[at].status = None;
        self.killed_at = self.committed();
    }

    pub(super) fn failover(&mut self, ms: u64) {
        self.failover_ms = Some(ms);
    }

    pub(super) fn over(&mut self) {
        self.is_over = true;
    }

    /// All vote, one leads, the others follow it: which one, and in which term.
    pub(super) fn agreed(&self) -> Option<(usize, u64)> {
        let (at, term) = self.leader()?;
        let id = &self.nodes[at].status.as_ref()?.id;
        let all = self.nodes.iter().all(|node| {
            let status = node.status.as_ref();
            status.is_some_and(|status| {
                status.role == "voter" && status.term == term && status.leader.id == *id
            })
        });
        all.then_some((at, term))
    }

    /// Who leads in a term after this one.
    pub(super) fn leader_after(&self, term: u64) -> Option<usize> {
        self.leader().filter(|(_, now)| *now > term).map(|(at, _)| at)
    }

    /// Whether a node has applied as much as the leader has.
    pub(super) fn caught_up(&self, at: usize) -> Option<()> {
        let (leader, _) = self.leader()?;
        let index = |at: usize| self.nodes[at].status.as_ref().map(|status| status.index);
        (at != leader && index(at)? >= index(leader)?).then_some(())
    }

    fn leader(&self) -> Option<(usize, u64)> {
        let leads = |at: &usize| {
            self.nodes[*at].status.as_ref().filter(|status| status.is_leader).map(|s| s.term)
        };
        // Two may say so for a moment; the later term is right.
        (0..self.nodes.len()).filter_map(|at| Some((at, leads(&at)?))).max_by_key(|(_, term)| *term)
    }

    /// What is seen, in a line.
    pub(super) fn in_words(&self) -> String {
        let nodes = self.nodes.iter().map(|node| format!("{}: {}", node.name, node.part()));
        let mut parts: Vec<String> = nodes.collect();
        if let Some(course) = &self.course {
            parts.push(match course.round {
                Some(round) => format!("round {round} of {}", self.rounds),
                None => "no round yet".into(),
            });
            parts.extend(course.reason.clone());
        }
        parts.join(", ")
    }
}

/// `96.5 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn with_article(role: &str) -> String {
    if role == "joining" { role.to_owned() } else { format!("a {role}") }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::answers::Who;

    pub(in super::super) fn status(id: &str, leader: &str, term: u64, index: u64) -> Status {
        Status {
            id: id.into(),
            role: "voter".into(),
            is_leader: id == leader,
            leader: Who { id: leader.into(), name: leader.into() },
            term,
            index,
            ..Status::default()
        }
    }

    pub(in super::super) fn scene(statuses: [Option<Status>; 3]) -> Scene {
        let nodes = [("a", "p"), ("b", "q"), ("c", "r")];
        let mut scene = Scene::new(Mode::Picture, nodes, 8, Instant::now());
        for (at, status) in statuses.into_iter().enumerate() {
            scene.looked(at, status).unwrap();
        }
        scene
    }

    #[test]
    fn three_agree_only_when_all_vote_and_name_the_same_leader() {
        let of = |id: &str| Some(status(id, "b", 2, 9));
        assert_eq!(scene([of("a"), of("b"), of("c")]).agreed(), Some((1, 2)));
        assert_eq!(scene([of("a"), of("b"), None]).agreed(), None);
        assert_eq!(scene([of("a"), of("b"), Some(status("c", "a", 2, 9))]).agreed(), None);
        let watcher = Status { role: "watcher".into(), ..status("c", "b", 2, 9) };
        assert_eq!(scene([of("a"), of("b"), Some(watcher)]).agreed(), None);
    }

    #[test]
    fn a_leader_of_the_old_term_is_no_new_leader() {
        let mut scene = scene([Some(status("a", "a", 2, 9)), Some(status("b", "a", 2, 9)), None]);
        assert_eq!(scene.leader_after(2), None);
        scene.killed(0);
        scene.looked(1, Some(status("b", "b", 3, 10))).unwrap();
        assert_eq!(scene.leader_after(2), Some(1));
        assert_eq!(scene.caught_up(0), None);
        scene.looked(0, Some(status("a", "b", 3, 10))).unwrap();
        assert_eq!(scene.caught_up(0), Some(()));
    }

    #[test]
    fn what_changes_is_told_once() {
        let mut scene = scene([Some(status("a", "a", 1, 1)), None, None]);
        scene.looked(0, Some(status("a", "a", 1, 2))).unwrap();
        let told: Vec<&str> = scene.events.iter().map(|event| event.text.as_str()).collect();
        assert_eq!(told, ["a leads in term 1"]);
    }

    /// A training of which so many rounds stand, `q` being as it is said to be.
    pub(in super::super) fn course(round: u64, standing: &str) -> Course {
        let one = |party: &str, standing: &str, compute_ms| Participant {
            party: party.into(),
            standing: standing.into(),
            compute_ms: Some(compute_ms),
            taken: round,
            ..Participant::default()
        };
        let point = |round: u64| super::super::course::Point {
            round,
            metrics: [("accuracy".to_owned(), 0.8 + round as f64 / 100.0)].into(),
        };
        Course {
            coordinator: Some("b".into()),
            round: Some(round),
            participants: vec![one("p", "good", 100), one("q", standing, 400)],
            curve: (1..=round).map(point).collect(),
            ..Course::default()
        }
    }

    fn told(scene: &Scene) -> Vec<&str> {
        scene.events.iter().map(|event| event.text.as_str()).collect()
    }

    #[test]
    fn each_round_and_each_standing_is_told_once() {
        let mut scene = scene([None, None, None]);
        scene.followed(course(1, "good")).unwrap();
        for _ in 0..2 {
            scene.followed(course(3, "slow")).unwrap();
        }
        // Of a node that is behind.
        scene.followed(course(2, "dropped")).unwrap();
        let want = [
            "b coordinates the training",
            "round 1 of 8, accuracy 81.0 %",
            "round 2 of 8, accuracy 82.0 %",
            "round 3 of 8, accuracy 83.0 %",
            "q is slow: 400 ms a round",
        ];
        assert_eq!(told(&scene), want);
        let accuracy = scene.last_accuracy().map(percent);
        assert_eq!((scene.committed(), accuracy.as_deref()), (Some(3), Some("83.0 %")));
        scene.followed(course(4, "dropped")).unwrap();
        scene.followed(course(5, "good")).unwrap();
        assert_eq!(told(&scene).last(), Some(&"q takes part again"));
    }

    #[test]
    fn who_waits_for_a_round_hears_that_it_never_comes() {
        let mut scene = scene([None, None, None]);
        assert_eq!(scene.reached(1), None);
        scene.followed(course(2, "good")).unwrap();
        assert_eq!((scene.reached(2), scene.reached(3)), (Some(Ok(2)), None));
        let over = Course { is_final: true, reason: Some("why".into()), ..course(2, "good") };
        scene.followed(over).unwrap();
        assert_eq!(scene.reached(3), Some(Err("why".into())));
        assert_eq!(scene.reached(2), Some(Ok(2)));
    }
}
