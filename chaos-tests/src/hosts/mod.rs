//! Real `mesh` processes, each on a host of its own, and the wire between them.
//!
//! - [`ns`]: a [`ns::Lab`] of hosts as network namespaces, on a bridge or on a [`wire::Wire`].
//! - [`wire`]: delay, jitter, loss and reordering in user space; `tap` is its one system call.
//! - [`process`]: a [`process::Host`]: a data directory, the binary in it, signals, a clock that can
//!   be set ([`clock`]), a disk that can be filled; [`binary`] finds and builds what it runs.
//! - [`client`]: what a program says to a node's socket. [`load`]: clients at work meanwhile, and what
//!   they were told. [`watch`]: what the nodes said of themselves.
//! - [`fleet`]: hosts that make one mesh, and the promises that must hold at the end. [`ground`]: jobs on it.
//! - [`leftovers`]: nothing of this outlives the test, even if it is killed.
//!
//! Nothing here decides what a node should do; the stories are in `tests/faults.rs`.

pub mod binary;
pub mod client;
pub mod clock;
pub mod fleet;
pub mod ground;
pub mod leftovers;
pub mod load;
pub mod ns;
pub mod ping;
pub mod process;
mod tap;
pub mod watch;
pub mod wire;

use std::path::Path;
use std::time::Duration;

use mesh_node::clock::steady;

/// Says whether this machine has what a test needs; where it does not, prints the line that `./test`
/// counts, and the test returns.
///
/// A word is `namespaces` (the right to make them), a path that must exist, or a command.
pub fn need(words: &[&str]) -> bool {
    let missing = words.iter().find(|word| match **word {
        "namespaces" => ns::Namespace::new().is_err(),
        path if path.starts_with('/') => !Path::new(path).exists(),
        command => !on_path(command),
    });
    match missing {
        Some(&"namespaces") => {
            println!("SKIPPED: network namespaces cannot be made here (not root?)")
        }
        Some(word) => println!("SKIPPED: this machine has no {word}"),
        None => return true,
    }
    false
}

fn on_path(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(command).is_file())
}

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until `what` gives something, for `patience` at most.
pub fn until<T>(patience: Duration, mut what: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = steady();
    loop {
        let found = what();
        if found.is_some() || begun.elapsed() >= patience {
            return found;
        }
        std::thread::sleep(LOOK);
    }
}
