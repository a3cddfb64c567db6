//! What happened, as lines and as a hash: two runs of one seed must have the same.

use mesh_consensus::driver::Turn;
use mesh_consensus::id::NodeId;
use mesh_consensus::message::Message;

/// Lines kept for the report of a violation.
const TAIL: usize = 200;

/// What happened so far.
pub struct Trace {
    hash: u64,
    keep_all: bool,
    lines: Vec<String>,
}

impl Trace {
    /// Nothing yet.
    pub fn new(keep_all: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, keep_all, lines: Vec::new() }
    }

    /// Something worth a line.
    pub fn note(&mut self, now: u64, line: impl FnOnce() -> String) {
        self.push(format!("{:>9.3} ms  {}", now as f64 / 1000.0, line()));
    }

    /// A turn: what was applied and sent.
    pub fn turn(&mut self, now: u64, host: usize, turn: &Turn, sent: &[(NodeId, Message)]) {
        for applied in &turn.applied {
            self.mix(&applied.history.0);
        }
        for (to, message) in sent {
            self.mix(&to.0[..8]);
            self.mix(message.body.name().as_bytes());
            self.mix(&message.term.to_le_bytes());
        }
        self.mix(&now.to_le_bytes());
        if self.keep_all {
            let sent: Vec<String> = (sent.iter())
                .map(|(_, message)| format!("{}→{}", message.body.name(), message.to))
                .collect();
            let applied: Vec<u64> = turn.applied.iter().map(|applied| applied.index).collect();
            let refused = &turn.refused;
            self.note(now, || {
                format!("host {host} applied {applied:?}, sent {sent:?}, refused {refused:?}")
            });
        }
    }

    /// The hash of everything.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// All lines, or the last ones.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }

    fn push(&mut self, line: String) {
        self.mix(line.as_bytes());
        if !self.keep_all && self.lines.len() >= 2 * TAIL {
            self.lines.drain(..TAIL);
        }
        self.lines.push(line);
    }

    fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
