//! Which ports are free, and who holds the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use mesh_node::config::Config;

use super::Finding;
use crate::answers::Status;
use crate::context::Place;
use crate::making::chain;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Udp,
    Tcp,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Udp => "udp",
            Kind::Tcp => "tcp",
        }
    }
}

/// Each port, the inodes of the sockets bound to it.
type Bound = BTreeMap<(Kind, u16), BTreeSet<u64>>;

/// Who holds a port, in words. `protocol` is `udp` or `tcp`: the two may be held by different programs.
pub(crate) fn holder_of(protocol: &str, port: u16) -> Option<String> {
    let kind = [Kind::Udp, Kind::Tcp].into_iter().find(|kind| kind.name() == protocol)?;
    let (pid, name) = holder(bound().get(&(kind, port))?)?;
    Some(format!("{name} (process {pid}) holds it"))
}

/// Every socket that listens on this machine.
fn bound() -> Bound {
    let mut bound = Bound::new();
    for (kind, file) in
        [(Kind::Udp, "udp"), (Kind::Udp, "udp6"), (Kind::Tcp, "tcp"), (Kind::Tcp, "tcp6")]
    {
        let table = fs::read_to_string(format!("/proc/net/{file}")).unwrap_or_default();
        for (port, inode) in parse(&table, kind) {
            bound.entry((kind, port)).or_default().insert(inode);
        }
    }
    bound
}

/// With a node: whether it holds its ports. Without: whether those that it would want are free.
pub(super) fn check(status: Option<&Status>, place: &Place) -> Vec<Finding> {
    let bound = bound();
    if let Some(status) = status {
        return wanted(status).into_iter().map(|port| held(port, status.pid, &bound)).collect();
    }
    let file = place.dir.join("config.toml");
    match Config::load(&file, &toml::Table::new(), |key| std::env::var(key).ok()) {
        Ok(config) => {
            let made = place.is_made();
            configured(&config).into_iter().map(|port| free(port, made, &bound)).collect()
        }
        Err(error) => {
            let hint = format!("correct {}", file.display());
            vec![Finding::wrong("settings", chain(&error), hint)]
        }
    }
}

/// Data, overlay and, if it is asked for, HTTP. Port 0 is any, and always free.
fn configured(config: &Config) -> Vec<(Kind, u16)> {
    let Config { data_port: data, overlay_port: overlay, api_listen: api, .. } = config;
    let mut ports = vec![(Kind::Udp, *data), (Kind::Udp, *overlay), (Kind::Tcp, *overlay)];
    ports.extend(api.map(|at| (Kind::Tcp, at.port())));
    ports.retain(|(_, port)| *port != 0);
    ports
}

fn wanted(status: &Status) -> Vec<(Kind, u16)> {
    let ports = |addresses: &[String]| -> BTreeSet<u16> {
        addresses.iter().filter_map(|address| address.rsplit_once(':')?.1.parse().ok()).collect()
    };
    let mut wanted = BTreeSet::new();
    wanted.extend(ports(&status.data_addresses).into_iter().map(|port| (Kind::Udp, port)));
    for port in ports(&status.overlay_addresses) {
        wanted.extend([(Kind::Udp, port), (Kind::Tcp, port)]);
    }
    let api: Vec<String> = status.api_address.iter().cloned().collect();
    wanted.extend(ports(&api).into_iter().map(|port| (Kind::Tcp, port)));
    wanted.into_iter().collect()
}

fn held((kind, port): (Kind, u16), pid: u32, bound: &Bound) -> Finding {
    let label = format!("{port}/{}", kind.name());
    let Some(inodes) = bound.get(&(kind, port)) else {
        let message = format!("{label} should be open and is not");
        return Finding::wrong("port", message, "mesh node logs, then mesh down && mesh up");
    };
    match holder(inodes) {
        Some((by, _)) if by == pid => Finding::ok("port", format!("{label} is open")),
        Some((by, name)) => Finding::look(
            "port",
            format!("{label} is also held by {name} (process {by})"),
            "make sure that nobody else takes this node's packets",
        ),
        // Another user's process, or another namespace: the kernel does not say.
        None => Finding::ok("port", format!("{label} is open")),
    }
}

fn free((kind, port): (Kind, u16), made: bool, bound: &Bound) -> Finding {
    let label = format!("{port}/{}", kind.name());
    let Some(inodes) = bound.get(&(kind, port)) else {
        return Finding::ok("port", format!("{label} is free"));
    };
    let by = holder(inodes).map_or("a process that you may not see".to_owned(), |(pid, name)| {
        format!("{name} (process {pid})")
    });
    if made {
        let message = format!("{label} is held by {by}, and the node of this directory needs it");
        return Finding::wrong("port", message, "stop that program, or change config.toml");
    }
    Finding::look(
        "port",
        format!("{label} is held by {by}"),
        "nothing: mesh takes the next free ones; or choose with --listen",
    )
}

/// The local port and inode of each socket that listens, from a table of `/proc/net`.
fn parse(table: &str, kind: Kind) -> Vec<(u16, u64)> {
    let rows = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = fields.get(1)?.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        // 0A: listening. A TCP connection from this port by chance is not a claim to it.
        if kind == Kind::Tcp && *fields.get(3)? != "0A" {
            return None;
        }
        Some((port, fields.get(9)?.parse().ok()?))
    });
    rows.collect()
}

/// The process that has one of these sockets open, as far as we may look.
fn holder(inodes: &BTreeSet<u64>) -> Option<(u32, String)> {
    let names: BTreeSet<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    for process in processes {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let holds =
            |link: std::path::PathBuf| link.to_str().is_some_and(|link| names.contains(link));
        if files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(holds)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_held_by_whoever_bound_it() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let us = std::process::id();
        let here = Place::named("/nonexistent".into());
        let status = Status {
            pid: us,
            data_addresses: vec![format!("127.0.0.1:{port}")],
            ..Status::default()
        };
        assert_eq!(
            check(Some(&status), &here),
            [Finding::ok("port", format!("{port}/udp is open"))]
        );
        let other = Status { pid: us + 1, ..status.clone() };
        let found = &check(Some(&other), &here)[0];
        assert!(found.message.contains(&format!("process {us}")), "{found:?}");
        drop(socket);
        assert!(check(Some(&status), &here)[0].message.contains("should be open"));
    }

    #[test]
    fn a_port_is_held_for_the_protocol_that_is_asked_about() {
        use std::os::fd::OwnedFd;
        use std::process::{Command, Stdio};
        let pair = || {
            let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let udp = std::net::UdpSocket::bind(tcp.local_addr().unwrap()).ok()?;
            Some((tcp, udp))
        };
        let (tcp, udp) = (0..100).find_map(|_| pair()).unwrap();
        let port = tcp.local_addr().unwrap().port();
        // The other program: it has the UDP socket for its standard input, and from then on we have it no more.
        let mut other =
            Command::new("sleep").arg("60").stdin(Stdio::from(OwnedFd::from(udp))).spawn().unwrap();
        let (by_udp, by_tcp) = (holder_of("udp", port), holder_of("tcp", port));
        other.kill().unwrap();
        other.wait().unwrap();
        let held_by = |pid: u32| format!("(process {pid}) holds it");
        assert!(by_udp.as_ref().unwrap().ends_with(&held_by(other.id())), "{by_udp:?}");
        assert!(by_tcp.as_ref().unwrap().ends_with(&held_by(std::process::id())), "{by_tcp:?}");
    }

    #[test]
    fn a_node_that_does_not_run_needs_the_ports_of_its_own_settings() {
        use super::super::State;
        let dir = tempfile::tempdir().unwrap();
        let place = Place::named(dir.path().into());
        let api = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = api.local_addr().unwrap();
        let text = format!("data_port = 0\noverlay_port = 0\napi_listen = \"{at}\"\n");
        fs::write(dir.path().join("config.toml"), text).unwrap();
        assert_eq!(check(None, &place)[0].state, State::Look, "another could be chosen");
        fs::write(dir.path().join("member"), "1").unwrap();
        let found = check(None, &place);
        assert_eq!((found.len(), found[0].state), (1, State::Wrong), "{found:?}");
        assert!(found[0].message.starts_with(&format!("{}/tcp", at.port())), "{found:?}");
        drop(api);
        assert_eq!(check(None, &place)[0].state, State::Ok);
        fs::write(dir.path().join("config.toml"), "data_prot = 1\n").unwrap();
        assert_eq!(check(None, &place)[0].state, State::Wrong);
    }

    #[test]
    fn a_tcp_connection_from_a_port_is_no_claim_to_it() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:18E7 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
            1: 0100007F:18E8 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 12 1\n\
            nonsense\n";
        assert_eq!(parse(table, Kind::Tcp), [(6375, 11)]);
        assert_eq!(parse(table, Kind::Udp), [(6375, 11), (6376, 12)]);
    }
}
