//! What is seen of the three nodes: who is up, who leads, what happened when.

use tokio::time::Instant;

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
    pub(super) failover_ms: Option<u64>,
    pub(super) is_over: bool,
}

impl Scene {
    pub(super) fn new(mode: Mode, names: [&'static str; 3], began: Instant) -> Self {
        let nodes = names.map(|name| Seen { name, ..Seen::default() });
        Self { mode, began, nodes, events: Vec::new(), failover_ms: None, is_over: false }
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
        let at_ms = self.elapsed_ms();
        match self.mode {
            Mode::Picture => {}
            Mode::Lines => {
                print(&format!("{:>7.2} s  {text}\n", at_ms as f64 / 1000.0))?;
            }
            Mode::Json => {
                print_json(&event(kind, node.map(|at| self.nodes[at].name), at_ms, &text))?;
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

    pub(super) fn killed(&mut self, at: usize) {
        self.nodes[at].is_killed = true;
        self.nodes[at].status = None;
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
        self.nodes
            .iter()
            .map(|node| format!("{}: {}", node.name, node.part()))
            .collect::<Vec<_>>()
            .join(", ")
    }
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
        let mut scene = Scene::new(Mode::Picture, ["a", "b", "c"], Instant::now());
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
}
