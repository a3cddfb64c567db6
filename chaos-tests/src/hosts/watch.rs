//! What the nodes said of themselves all along.
//!
//! Asks every node for its status several times a second and remembers who led which term, which
//! history stood at which index, and how far each process was. Two nodes that disagree are found even if
//! they never meet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::{Client, Status};

/// Between two looks at one node.
const EVERY: Duration = Duration::from_millis(100);

/// What was seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// B: the leader of each term.
    leaders: BTreeMap<u64, String>,
    /// C: the history at each index.
    histories: BTreeMap<u64, String>,
    /// The role and the index with which each process of each node was seen last.
    last: BTreeMap<(String, i32), (String, u64)>,
    wrong: Option<String>,
}

impl Seen {
    /// Takes note of one status.
    pub fn note(&mut self, status: &Status) {
        if status.is_leader {
            let leader = self.leaders.entry(status.term).or_insert_with(|| status.id.clone());
            if *leader != status.id {
                let wrong = format!("term {}: both {leader} and {} led", status.term, status.id);
                self.wrong.get_or_insert(wrong);
            }
        }
        if let Some(history) = &status.history {
            let known = self.histories.entry(status.index).or_insert_with(|| history.clone());
            if known != history {
                let wrong = format!(
                    "index {}: {} has history {history}, another {known}",
                    status.index, status.id
                );
                self.wrong.get_or_insert(wrong);
            }
        }
        let process = (status.id.clone(), status.pid);
        let before = self.last.insert(process, (status.role.clone(), status.index));
        // A voter whose log fails only watches, and once the log is open again it is told anew what is
        // committed. So two looks are compared that found the same role.
        if let Some((role, index)) = before
            && role == status.role
            && index > status.index
        {
            let wrong = format!("{} went back from index {index} to {}", status.id, status.index);
            self.wrong.get_or_insert(wrong);
        }
    }

    /// B and C: one leader a term, one history an index, and no index that goes back.
    pub fn consistent(&self) -> Result<(), String> {
        match &self.wrong {
            Some(wrong) => Err(wrong.clone()),
            None if self.leaders.is_empty() => Err("no leader was ever seen".into()),
            None if self.histories.is_empty() => Err("no status had a history".into()),
            None => Ok(()),
        }
    }

    /// The latest term in which a leader was seen; 0 if none was.
    pub fn term(&self) -> u64 {
        self.leaders.last_key_value().map_or(0, |(&term, _)| term)
    }

    /// How many terms had a leader since `term`.
    pub fn elections_since(&self, term: u64) -> usize {
        self.leaders.range(term + 1..).count()
    }
}

/// Looks at nodes until dropped.
pub struct Watch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    seen: Mutex<Seen>,
}

impl Watch {
    /// Begins to look at these nodes; each has a thread, because one that hangs must not hide the rest.
    pub fn start(doors: Vec<Client>) -> Self {
        let mut watch = Self { shared: Arc::default(), threads: Vec::new() };
        for door in doors {
            watch.add(door);
        }
        watch
    }

    /// Looks at this one, too.
    pub fn add(&mut self, door: Client) {
        let shared = self.shared.clone();
        self.threads.push(std::thread::spawn(move || {
            while !shared.stop.load(Ordering::Relaxed) {
                if let Ok(status) = door.status() {
                    shared.seen().note(&status);
                }
                std::thread::sleep(EVERY);
            }
        }));
    }

    /// What was seen so far.
    pub fn seen(&self) -> Seen {
        self.shared.seen().clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(id: &str, leads: bool, term: u64, index: u64, history: &str) -> Status {
        Status {
            id: id.into(),
            pid: 1,
            is_leader: leads,
            role: "voter".into(),
            term,
            index,
            history: Some(history.into()),
        }
    }

    fn seen(statuses: &[Status]) -> Seen {
        let mut seen = Seen::default();
        statuses.iter().for_each(|status| seen.note(status));
        seen
    }

    #[test]
    fn leaders_of_different_terms_and_nodes_that_lag_are_fine() {
        let all = seen(&[
            status("a", true, 1, 5, "x"),
            status("b", true, 2, 6, "y"),
            status("c", false, 2, 5, "x"),
        ]);
        assert_eq!(all.consistent(), Ok(()));
        assert_eq!((all.term(), all.elections_since(1)), (2, 1));
    }

    #[test]
    fn two_leaders_of_one_term_are_found() {
        let both = [status("a", true, 3, 5, "x"), status("b", true, 3, 5, "x")];
        assert!(seen(&both).consistent().unwrap_err().contains("both a and b led"));
    }

    #[test]
    fn a_process_that_goes_back_is_found_and_another_may_begin_anew() {
        let (late, early) = (status("a", false, 3, 6, "y"), status("a", true, 3, 5, "x"));
        let back = seen(&[late.clone(), early.clone()]);
        assert!(back.consistent().unwrap_err().contains("from index 6 to 5"));
        let forth = seen(&[early.clone(), late.clone()]);
        assert_eq!(forth.consistent(), Ok(()));
        let restarted = seen(&[late, Status { pid: 2, ..early }]);
        assert_eq!(restarted.consistent(), Ok(()));
    }

    #[test]
    fn two_histories_at_one_index_are_found_and_none_at_all_proves_nothing() {
        let fork = [status("a", true, 3, 5, "x"), status("b", false, 3, 5, "z")];
        assert!(seen(&fork).consistent().unwrap_err().contains("index 5"));
        let mute = Status { history: None, ..status("a", true, 3, 5, "") };
        assert!(seen(&[mute]).consistent().unwrap_err().contains("no status had a history"));
    }
}
