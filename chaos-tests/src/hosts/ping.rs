//! Does it get through, and how fast? Echoes over UDP, in place of the command that not every machine
//! has.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use mesh_node::clock::steady;

use super::ns::Lab;

/// A reader looks at least so often whether it should stop.
const NAP: Duration = Duration::from_millis(20);

/// Sends `count` numbered packets from one host to another, one every `every`, and waits `patience`
/// for the last echo. Answers with the time that each took there and back; `None` if it was lost.
pub fn ping(
    lab: &Lab,
    from: usize,
    to: usize,
    count: usize,
    every: Duration,
    patience: Duration,
) -> anyhow::Result<Vec<Option<Duration>>> {
    let there = lab.namespace(to).run(|| UdpSocket::bind((lab.address(to), 0)))??;
    let here = lab.namespace(from).run(|| UdpSocket::bind((lab.address(from), 0)))??;
    let target = there.local_addr()?;
    there.set_read_timeout(Some(NAP))?;
    here.set_read_timeout(Some(NAP))?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&there, &done));
        let times = scope.spawn(|| send(&here, target, count, every, patience)).join();
        done.store(true, Ordering::Relaxed);
        times.ok().context("the pinging thread panicked")
    })
}

fn echo(socket: &UdpSocket, done: &AtomicBool) {
    let mut packet = [0; 64];
    while !done.load(Ordering::Relaxed) {
        if let Ok((size, from)) = socket.recv_from(&mut packet) {
            let _ = socket.send_to(&packet[..size], from);
        }
    }
}

fn send(
    socket: &UdpSocket,
    target: SocketAddr,
    count: usize,
    every: Duration,
    patience: Duration,
) -> Vec<Option<Duration>> {
    let mut sent = Vec::new();
    let mut times = vec![None; count];
    let mut packet = [0; 8];
    let begun = steady();
    let end = every * u32::try_from(count).unwrap_or(u32::MAX) + patience;
    while begun.elapsed() < end && times.iter().any(Option::is_none) {
        while sent.len() < count && begun.elapsed() >= every * sent.len() as u32 {
            let number = (sent.len() as u64).to_be_bytes();
            sent.push(steady());
            // A host whose link is down says so here; that is a loss, too.
            let _ = socket.send_to(&number, target);
        }
        if let Ok((8, _)) = socket.recv_from(&mut packet) {
            let number = u64::from_be_bytes(packet) as usize;
            if let (Some(time), Some(sent)) = (times.get_mut(number), sent.get(number)) {
                time.get_or_insert_with(|| sent.elapsed());
            }
        }
    }
    times
}
