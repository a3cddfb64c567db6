//! How a mesh begins and how a newcomer becomes a member.
//!
//! ```text
//!  newcomer                                   any member (its sponsor)
//!     │ makes its key, keeps it
//!     │ ALPN mesh-join/1, the member's key checked ──►│
//!     │ Join { ticket, proof, consent } ─────────────►│ Admit, through raft
//!     │◄── Welcome { seat, founding, admission, … } ──│
//!     │ checks that the founding hashes to the mesh's name
//!     │ makes its log and the file `member` (begin.rs): from here on it is a node
//! ```
//!
//! A newcomer believes what its ticket says (mesh, party, keys to meet) and nothing else. If it fails, what
//! it has made is removed; unless a member may have heard it. Then the mesh may know its key, and the same command
//! goes on with it.
//!
//! With an invite it founds a party first: `Found`, then `Decided` until the other parties have agreed, then
//! `Join` with the first ticket of its own party. That may take days, so what it has made stays: the same
//! command goes on where it was.

pub mod begin;
mod newcomer;
mod sponsor;

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use mesh_consensus::log::Identity;
use mesh_consensus::replica::Replica;
use mesh_storage::log::CreateError;
use mesh_transport::identity::NodeKey;
use toml::{Table, Value};

pub use newcomer::{Joined, Tried, join, rejoin};
pub use sponsor::Sponsor;

use crate::clock;
use crate::config::{Config, ConfigError, FIRST_PORT};
use crate::dir::{Dir, DirError, Made, Membership};
use crate::party::PartySecret;
use crate::state::founding::{Founding, FoundingError, mesh_id};
use crate::state::level::LEVEL;
use crate::state::name::Name;
use crate::state::{FOUNDERS_SEAT, State};

/// Why a node could not be made.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The directory.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory belongs to another mesh.
    #[error("{} holds a node of mesh {}, and the ticket is for mesh {}", path.display(), holds.short(), ticket.short())]
    OtherMesh {
        /// The directory.
        path: std::path::PathBuf,
        /// Whose it is.
        holds: mesh_consensus::id::MeshId,
        /// What the ticket says.
        ticket: mesh_consensus::id::MeshId,
    },
    /// The mesh cannot begin so.
    #[error(transparent)]
    Founding(#[from] FoundingError),
    /// The log could not be made.
    #[error("could not make the node's log")]
    Log(#[source] CreateError),
    /// The network could not be used.
    #[error("could not open a socket")]
    Socket(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Ports are taken.
    #[error("no free ports on {address}")]
    NoPorts {
        /// Where.
        address: IpAddr,
    },
    /// The address that was asked for is not this machine's.
    #[error("this machine has no address {0}")]
    NotOurs(IpAddr),
    /// The port that was asked for is taken.
    #[error("port {} is in use on {} ({protocol})", address.port(), address.ip())]
    PortTaken {
        /// The address that was asked for.
        address: SocketAddr,
        /// `udp` or `tcp`: a port may be free for one and taken for the other.
        protocol: &'static str,
    },
    /// Nobody let us in.
    #[error("no node of the mesh could be reached")]
    Unreachable(Vec<Tried>),
    /// The mesh said no.
    #[error("the mesh refused: {why}")]
    Refused {
        /// The state's reason, if it was the state's.
        code: Option<u16>,
        /// In words.
        why: String,
    },
    /// Nobody leads.
    #[error("the mesh has no leader, so nobody can be admitted")]
    NoLeader,
    /// The name that the new party wants is another's.
    #[error("a party is called {0} already")]
    PartyName(Name),
    /// The other parties have not agreed yet.
    #[error("request {request} waits for the other parties")]
    Waits {
        /// The request.
        request: u64,
    },
    /// The member that answered told a lie.
    #[error("the member that answered is not to be believed: {0}")]
    Lie(&'static str),
    /// There is nothing to join again.
    #[error("this directory does not say which mesh it belongs to")]
    NoMembership,
}

impl From<begin::BeginError> for JoinError {
    fn from(error: begin::BeginError) -> Self {
        match error {
            begin::BeginError::Dir(error) => Self::Dir(error),
            begin::BeginError::Log(error) => Self::Log(error),
        }
    }
}

/// What a person chose for a new node. Everything else follows.
#[derive(Debug, Clone, Default)]
pub struct Choices {
    /// The party to found, or that a new party is to be called.
    pub party: Option<Name>,
    /// What the node is called.
    pub name: Option<Name>,
    /// Where it listens: an address, with a port or without.
    pub listen: Vec<(IpAddr, Option<u16>)>,
    /// Other settings, as in `config.toml`.
    pub settings: Table,
}

impl Choices {
    /// The first port that was named; zero for any.
    fn port(&self) -> Option<u16> {
        self.listen.iter().find_map(|(_, port)| *port)
    }
}

/// Founds a mesh in `dir`. The node is not started. What was made of the directory is for [`unfound`].
pub fn found(dir: &Dir, choices: &Choices) -> Result<Made, JoinError> {
    let claim = dir.claim()?;
    if dir.is_joining() {
        return Err(DirError::Joining(dir.path().to_path_buf()).into());
    }
    let founded = keep_config(dir, choices).and_then(|name| {
        let founded = try_found(dir, choices, name);
        if founded.is_err() {
            // No node was here before, so none is lost.
            let _ = dir.clear();
        }
        founded
    });
    if let Err(error) = founded {
        dir.unmake(&claim.made);
        return Err(error);
    }
    Ok(claim.made)
}

fn try_found(dir: &Dir, choices: &Choices, name: Name) -> Result<(), JoinError> {
    let key = NodeKey::generate();
    let secret = PartySecret::generate();
    let founding = Founding {
        party: choices.party.clone().unwrap_or_else(|| name.clone()),
        signing: secret.id(),
        sealing: secret.sealing(),
        founder: key.id(),
        node: name,
        time: clock::now(),
        level: LEVEL,
        salt: crate::random(),
    };
    let mesh = mesh_id(&founding);
    let time = founding.time;
    let state = State::genesis(founding, LEVEL)?;
    let genesis = Replica::genesis(mesh, time, FOUNDERS_SEAT, state).snapshot();
    let identity = Identity { mesh, epoch: 0, node: key.id(), raft_id: FOUNDERS_SEAT };
    dir.keep_node_key(&key)?;
    dir.keep_party_secret(&secret)?;
    let membership = Membership {
        identity,
        party: secret.id(),
        worker: false,
        chain: Vec::new(),
        introduced: Vec::new(),
        voters: vec![key.id()],
        left: false,
    };
    Ok(begin::begin(dir, &membership, Some(&genesis))?)
}

/// Founds nothing after all: removes a mesh of one that was founded in `dir` and that nobody else knows of, with what
/// was made for it.
pub fn unfound(dir: &Dir, made: &Made) -> Result<(), JoinError> {
    let _lock = dir.lock()?;
    dir.clear()?;
    dir.unmake(made);
    Ok(())
}

/// Chooses ports that are free, and keeps them with what the person chose and what was written down before. What
/// the node is to be called.
fn keep_config(dir: &Dir, choices: &Choices) -> Result<Name, JoinError> {
    let mut table = Config::stored(&dir.file("config.toml"))?;
    table.extend(choices.settings.clone());
    if let Some(name) = &choices.name {
        table.insert("name".into(), Value::from(name.as_str()));
    }
    if !choices.listen.is_empty() {
        let listen = choices.listen.iter().map(|(ip, _)| Value::from(ip.to_string()));
        table.insert("listen".into(), Value::Array(listen.collect()));
    }
    let config = resolved(&table)?;
    if let Some((ip, _)) = choices.listen.iter().find(|(ip, _)| !ip_exists(*ip)) {
        return Err(JoinError::NotOurs(*ip));
    }
    let ports = Ports::of(&config).choose(choices.port())?;
    keep_ports(dir, table, ports)?;
    let name = config.name.unwrap_or_else(host_name);
    keep_name(dir, &name)?;
    Ok(name)
}

/// Keeps what the node is called.
fn keep_name(dir: &Dir, name: &Name) -> Result<(), JoinError> {
    let mut table = Config::stored(&dir.file("config.toml"))?;
    table.insert("name".into(), Value::from(name.as_str()));
    Ok(dir.keep_config(&Config::to_file(&table))?)
}

fn keep_ports(dir: &Dir, mut table: Table, ports: (u16, u16)) -> Result<(), JoinError> {
    table.insert("data_port".into(), Value::Integer(ports.0.into()));
    table.insert("overlay_port".into(), Value::Integer(ports.1.into()));
    Ok(dir.keep_config(&Config::to_file(&table))?)
}

/// The settings that a node would have with this `config.toml`.
fn resolved(stored: &Table) -> Result<Config, JoinError> {
    Ok(Config::resolve(stored, &Table::new(), |key| std::env::var(key).ok())?)
}

/// Chooses other ports for a node that could not start, if its own were taken in the meantime and the person
/// has named none. Whether it did.
pub fn choose_ports_again(dir: &Dir, choices: &Choices) -> Result<bool, JoinError> {
    let table = Config::stored(&dir.file("config.toml"))?;
    let config = resolved(&table)?;
    let wanted = choices.port();
    let ports = Ports::of(&config);
    if wanted.is_some_and(|port| port != 0) || ports.are_free(config.data_port, config.overlay_port)
    {
        return Ok(false);
    }
    let chosen = ports.choose(wanted)?;
    keep_ports(dir, table, chosen)?;
    Ok(true)
}

/// Which ports a node needs: data (UDP), overlay (UDP and TCP) and, if it is asked for, the HTTP API (TCP).
struct Ports<'a> {
    listen: &'a [IpAddr],
    /// What the settings say, free or not.
    usual: (u16, u16),
    /// Where the HTTP API has the third port.
    api: Option<IpAddr>,
    /// Where it has a port of its own.
    own_api: Option<SocketAddr>,
}

impl<'a> Ports<'a> {
    fn of(config: &'a Config) -> Self {
        let api = config.api_listen;
        // Without a port in the settings it follows the others.
        let text = config.origins.get("api_listen").and_then(|(value, _)| value.as_str());
        let follows = text.is_some_and(|text| text.parse::<IpAddr>().is_ok());
        Self {
            listen: &config.listen,
            usual: (config.data_port, config.overlay_port),
            api: api.filter(|_| follows).map(|at| at.ip()),
            own_api: api.filter(|at| !follows && at.port() != 0),
        }
    }

    /// The first of these that is taken, and for which protocol.
    fn taken(&self, data: u16, overlay: u16) -> Option<(&'static str, SocketAddr)> {
        let third = data.checked_add(2);
        let needs = (self.listen.iter())
            .flat_map(|ip| [(UDP, *ip, data), (UDP, *ip, overlay), (TCP, *ip, overlay)])
            .chain(self.api.zip(third).map(|(ip, port)| (TCP, ip, port)))
            .chain(self.own_api.map(|at| (TCP, at.ip(), at.port())));
        let mut needs = needs.filter(|(_, ip, _)| ip_exists(*ip));
        let taken =
            needs.find(|(protocol, ip, port)| !(protocol.is_free)(SocketAddr::new(*ip, *port)));
        taken.map(|(protocol, ip, port)| (protocol.name, SocketAddr::new(ip, port)))
    }

    fn are_free(&self, data: u16, overlay: u16) -> bool {
        self.taken(data, overlay).is_none()
    }

    /// The ports of the data plane and of the overlay: `wanted` and the next, any for port 0, or those of the
    /// settings, or else the next free three.
    fn choose(&self, wanted: Option<u16>) -> Result<(u16, u16), JoinError> {
        /// Below those that a kernel lends to whoever dials out: they are kept, and wanted again at each start.
        const ANY: std::ops::Range<u16> = 10_000..32_000;
        if let Some(address) = self.own_api.filter(|at| ip_exists(at.ip()) && !(TCP.is_free)(*at)) {
            // No other choice of ours would help.
            return Err(JoinError::PortTaken { address, protocol: TCP.name });
        }
        let first = self.listen.first().copied().unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let none = JoinError::NoPorts { address: first };
        let three = |port: u16| self.are_free(port, port + 1).then_some((port, port + 1));
        let (data, overlay) = self.usual;
        match wanted {
            Some(0) => any(ANY).find_map(three).ok_or(none),
            Some(port) => {
                let next = port.checked_add(1).ok_or(none)?;
                match self.taken(port, next) {
                    None => Ok((port, next)),
                    Some((protocol, address)) => Err(JoinError::PortTaken { address, protocol }),
                }
            }
            None if data == 0 || overlay == 0 => any(ANY).find_map(three).ok_or(none),
            None if self.are_free(data, overlay) => Ok((data, overlay)),
            None => (FIRST_PORT..u16::MAX - 3).step_by(3).take(1000).find_map(three).ok_or(none),
        }
    }
}

fn any(range: std::ops::Range<u16>) -> impl Iterator<Item = u16> {
    std::iter::repeat_with(move || fastrand::u16(range.clone())).take(1000)
}

/// One of the two protocols.
struct Protocol {
    name: &'static str,
    /// Whether an address is free for it.
    is_free: fn(SocketAddr) -> bool,
}

const UDP: Protocol = Protocol { name: "udp", is_free: |at| UdpSocket::bind(at).is_ok() };
const TCP: Protocol = Protocol { name: "tcp", is_free: |at| TcpListener::bind(at).is_ok() };

/// Whether this machine has the family of the address at all: some have no IPv6.
fn ip_exists(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// The machine's name, as far as it is a name here.
pub fn host_name() -> Name {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().to_lowercase();
    let short = host.split('.').next().unwrap_or_default();
    let clean: String = short
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' })
        .take(48)
        .collect();
    clean.trim_matches('-').parse().unwrap_or_else(|_| "node".parse().expect("this is a name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(port: Option<u16>) -> Choices {
        let listen = vec![(IpAddr::from([127, 0, 0, 1]), port)];
        Choices { name: Some("one".parse().unwrap()), listen, ..Choices::default() }
    }

    fn port_of(dir: &Dir) -> u16 {
        Config::load(&dir.file("config.toml"), &Table::new(), |_| None).unwrap().data_port
    }

    #[test]
    fn an_address_of_another_machine_is_refused_and_leaves_nothing_behind() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        // Reserved for documentation: nobody has it.
        let listen = vec![(IpAddr::from([192, 0, 2, 1]), Some(0))];
        let refused = found(&dir, &Choices { listen, ..Choices::default() });
        assert!(matches!(refused, Err(JoinError::NotOurs(_))), "{refused:?}");
        assert!(!dir.path().exists());
        let made = found(&dir, &choices(Some(0))).unwrap();
        unfound(&dir, &made).unwrap();
        assert!(!dir.path().exists());
    }

    #[test]
    fn ports_that_somebody_took_are_chosen_again_unless_a_person_named_them() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        found(&dir, &choices(Some(0))).unwrap();
        let first = port_of(&dir);
        assert!(!choose_ports_again(&dir, &choices(Some(0))).unwrap(), "they are free");
        let _thief = UdpSocket::bind(("127.0.0.1", first)).unwrap();
        assert!(!choose_ports_again(&dir, &choices(Some(first))).unwrap(), "it was named");
        assert_eq!(port_of(&dir), first);
        assert!(choose_ports_again(&dir, &choices(Some(0))).unwrap());
        assert_ne!(port_of(&dir), first);
        let config = Config::stored(&dir.file("config.toml")).unwrap();
        assert_eq!(config["name"].as_str(), Some("one"), "the rest is kept");
    }

    #[test]
    fn ports_are_free_only_if_all_that_needs_them_can_have_them() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let config =
            resolved(&"listen = [\"127.0.0.1\"]\napi_listen = \"127.0.0.1\"".parse().unwrap());
        let config = config.unwrap();
        let ports = Ports::of(&config);
        let (data, overlay) = ports.choose(Some(0)).unwrap();
        assert_eq!(ports.taken(data, overlay), None);
        for port in [overlay, overlay + 1] {
            let held = TcpListener::bind((here, port)).unwrap();
            let at = SocketAddr::new(here, port);
            assert_eq!(ports.taken(data, overlay), Some(("tcp", at)));
            let refused = ports.choose(Some(data));
            let is_it = matches!(
                refused,
                Err(JoinError::PortTaken { address, protocol: "tcp" }) if address == at
            );
            assert!(is_it, "{refused:?}");
            drop(held);
        }
        let _data_is_udp_alone = TcpListener::bind((here, data)).unwrap();
        assert_eq!(ports.taken(data, overlay), None);
        let _thief = UdpSocket::bind((here, data)).unwrap();
        assert_eq!(ports.taken(data, overlay), Some(("udp", SocketAddr::new(here, data))));
    }

    #[test]
    fn what_was_written_down_before_stays_and_a_port_that_is_taken_leaves_no_node() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        std::fs::create_dir(dir.path()).unwrap();
        std::fs::write(dir.file("config.toml"), "mdns = true\nname = \"mine\"\n").unwrap();
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = format!("api_listen = \"{}\"", held.local_addr().unwrap());
        let listen = vec![(IpAddr::from([127, 0, 0, 1]), Some(0))];
        let mut choices = Choices { listen, settings: api.parse().unwrap(), ..Choices::default() };
        let refused = found(&dir, &choices);
        assert!(matches!(refused, Err(JoinError::PortTaken { .. })), "{refused:?}");
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "the settings alone: {left:?}");
        choices.settings.clear();
        let made = found(&dir, &choices).unwrap();
        let config = Config::stored(&dir.file("config.toml")).unwrap();
        assert_eq!((config["mdns"].as_bool(), config["name"].as_str()), (Some(true), Some("mine")));
        assert!(config.contains_key("data_port"));
        unfound(&dir, &made).unwrap();
        assert!(dir.file("config.toml").exists() && !dir.file("VERSION").exists());
        found(&dir, &choices).unwrap();
    }

    #[test]
    fn a_join_that_fails_takes_nothing_from_whoever_was_quicker() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        let lock = dir.claim().unwrap();
        let refused = found(&dir, &choices(Some(0)));
        assert!(matches!(refused, Err(JoinError::Dir(DirError::Running(_)))), "{refused:?}");
        drop(lock);
        found(&dir, &choices(Some(0))).unwrap();
        assert!(found(&dir, &choices(Some(0))).is_err());
        assert!(dir.node_key().is_ok() && dir.is_taken());
    }
}
