//! Hosts that make one mesh, clients at work on it, and the promises that must hold at the end.
//!
//! A story founds a fleet, breaks something, lets it heal, and calls [`Fleet::finish`].

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use mesh_consensus::autopilot::target;

use super::client::{Client, Member, Status};
use super::leftovers::Room;
use super::load::{History, Load};
use super::ns::Lab;
use super::process::{Host, Place};
use super::until;
use super::watch::Watch;

/// How long a mesh may take to find a leader and bring everyone up to date. Generous: a test machine
/// has few cores and many tests.
pub const SETTLE: Duration = Duration::from_secs(45);

/// A mesh of real processes.
pub struct Fleet {
    /// Its hosts; the first one founded it.
    pub hosts: Vec<Host>,
    /// The party of all of them.
    pub party: String,
    watch: Watch,
    lab: Option<Arc<Lab>>,
    room: Arc<Room>,
    /// Settings of every node.
    settings: Vec<(&'static str, &'static str)>,
}

/// How a fleet is made.
#[derive(Default)]
pub struct Plan {
    hosts: usize,
    lab: Option<Lab>,
    clocks: bool,
    first_disk: Option<u64>,
    settings: Vec<(&'static str, &'static str)>,
}

impl Plan {
    /// So many hosts on the loopback interface.
    pub fn loopback(hosts: usize) -> Self {
        Self { hosts, ..Self::default() }
    }

    /// As many hosts as the lab has, or fewer for now.
    pub fn lab(lab: Lab, hosts: usize) -> Self {
        Self { hosts, lab: Some(lab), ..Self::default() }
    }

    /// Every host has a wall clock that can be set.
    pub fn clocks(mut self) -> Self {
        self.clocks = true;
        self
    }

    /// The first host has a disk of so many bytes.
    pub fn first_disk(mut self, bytes: u64) -> Self {
        self.first_disk = Some(bytes);
        self
    }

    /// Every node has this variable.
    pub fn setting(mut self, key: &'static str, value: &'static str) -> Self {
        self.settings.push((key, value));
        self
    }

    /// A node that vanished is given up after seconds instead of a minute.
    pub fn short_waits(self) -> Self {
        self.setting("MESH_TEST_WAITS", "short")
    }

    /// Founds a mesh on the first host and lets the others join.
    pub fn found(self) -> anyhow::Result<Fleet> {
        let Self { hosts, lab, clocks, first_disk, settings } = self;
        let mut fleet = Fleet {
            hosts: Vec::new(),
            party: String::new(),
            watch: Watch::start(Vec::new()),
            lab: lab.map(Arc::new),
            room: Arc::new(Room::new()?),
            settings,
        };
        for number in 0..hosts {
            let mut host = fleet.host(number)?;
            if clocks {
                host = host.with_clock()?;
            }
            if let Some(bytes) = first_disk.filter(|_| number == 0) {
                host = host.with_disk(bytes)?;
            }
            match fleet.hosts.first() {
                None => drop(host.init()?),
                Some(first) => host.join(&first.ticket()?)?,
            }
            fleet.watch.add(host.client());
            fleet.hosts.push(host);
        }
        fleet.party = fleet.hosts[0].client().party()?;
        // A mesh takes seconds to seat its voters. Before that, any loss could be the loss of all.
        let voters = target(hosts);
        fleet.until_members(&format!("{voters} of {hosts} vote"), |members| {
            members.iter().filter(|member| member.role == "voter").count() == voters
        })?;
        fleet.settle()?;
        Ok(fleet)
    }
}

impl Fleet {
    /// A host that is not a member yet, and not one of [`hosts`](Self::hosts).
    pub fn host(&self, number: usize) -> anyhow::Result<Host> {
        let place = match &self.lab {
            Some(lab) => Place::Lab(lab.clone(), number),
            None => Place::Loopback,
        };
        let host = Host::new(&self.room, &format!("n{number}"), place)?;
        Ok(self.settings.iter().fold(host, |host, (key, value)| host.with_setting(key, value)))
    }

    /// A further host joins; its number.
    pub fn grow(&mut self) -> anyhow::Result<usize> {
        let number = self.hosts.len();
        let host = self.host(number)?;
        let through = self.leader().context("there is no leader to join through")?;
        host.join(&self.hosts[through].ticket()?)?;
        self.watch.add(host.client());
        self.hosts.push(host);
        Ok(number)
    }

    /// A further host joins with a party of its own, which is called as the host is; its number. Returns when it votes.
    pub fn grow_by_party(&mut self) -> anyhow::Result<usize> {
        let number = self.hosts.len();
        let host = self.host(number)?;
        let through = self.leader().context("there is no leader to join through")?;
        let ticket = self.hosts[through].new_party()?;
        // From the third party on, the others have to agree, while the newcomer waits.
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| host.join_as_party(&ticket));
            while !joins.is_finished() {
                for other in &self.hosts {
                    other.grant_all();
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            joins.join().map_err(|_| anyhow::anyhow!("joining panicked"))?
        })?;
        self.watch.add(host.client());
        self.hosts.push(host);
        let voters = target(self.hosts.len());
        self.until_members(&format!("{voters} vote"), |members| {
            members.iter().filter(|member| member.role == "voter").count() == voters
        })?;
        Ok(number)
    }

    /// The network between the hosts.
    pub fn lab(&self) -> &Lab {
        self.lab.as_ref().expect("the plan of this story has a lab")
    }

    /// Every node's socket.
    pub fn doors(&self) -> Vec<Client> {
        self.hosts.iter().map(Host::client).collect()
    }

    /// Clients begin to work, through every node.
    pub fn load(&self, seed: u64) -> Load {
        Load::start(self.doors(), &self.party, seed)
    }

    /// Which host leads: of those that say so, the one in the latest term.
    pub fn leader(&self) -> Option<usize> {
        let statuses = self.hosts.iter().map(|host| host.client().status().ok());
        let leaders = statuses.enumerate().filter_map(|(host, status)| {
            let status = status.filter(|status| status.is_leader)?;
            Some((status.term, host))
        });
        leaders.max().map(|(_, host)| host)
    }

    /// Waits for a leader that is not `other`.
    pub fn leader_but(&self, other: usize) -> anyhow::Result<usize> {
        until(SETTLE, || self.leader().filter(|&leader| leader != other))
            .with_context(|| format!("nobody but n{other} led within {SETTLE:?}"))
    }

    /// The members as the first host that answers sees them.
    pub fn members(&self) -> Option<Vec<Member>> {
        self.hosts.iter().find_map(|host| host.client().nodes().ok())
    }

    /// Waits until this is true of the members.
    pub fn until_members(
        &self,
        what: &str,
        is: impl Fn(&[Member]) -> bool,
    ) -> anyhow::Result<Vec<Member>> {
        let mut last = None;
        until(SETTLE, || {
            last = self.members();
            last.clone().filter(|members| is(members))
        })
        .with_context(|| format!("not within {SETTLE:?}: {what}; last seen: {last:?}"))
    }

    /// The latest term in which a leader was seen.
    pub fn term(&self) -> u64 {
        self.watch.seen().term()
    }

    /// How many leaders were elected after `term`, as far as they were seen.
    pub fn elections_since(&self, term: u64) -> usize {
        self.watch.seen().elections_since(term)
    }

    /// The hosts that run, and those that should: one that ended by itself must not go unseen.
    fn running(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.should_run() || host.runs())
    }

    /// Waits until there is one leader and every host that runs or should run has caught up with it.
    pub fn settle(&self) -> anyhow::Result<()> {
        let mut last = Vec::new();
        let goal = until(SETTLE, || {
            let leader = self.hosts[self.leader()?].client().status().ok()?;
            Some(leader.index)
        });
        let goal = goal.with_context(|| format!("no leader within {SETTLE:?}"))?;
        let settled = until(SETTLE, || {
            let all = self.running().map(|host| host.client().status().ok());
            last = all.collect::<Vec<Option<Status>>>();
            let terms = last.iter().flatten().map(|status| status.term);
            let latest = terms.max()?;
            let there = |status: &Option<Status>| {
                status.as_ref().is_some_and(|s| s.index >= goal && s.term == latest)
            };
            last.iter().all(there).then_some(())
        });
        settled.with_context(|| {
            let fell: Vec<String> = self.hosts.iter().filter_map(Host::fell).collect();
            format!("not all at {goal} within {SETTLE:?}: {last:?} {fell:?}")
        })
    }

    /// Ends a story: the load stops, everything settles, and every promise is checked on every host
    /// that runs or should run. Prints what was measured.
    pub fn finish(self, load: Load) -> anyhow::Result<History> {
        let show = |_: &anyhow::Error| self.hosts.iter().for_each(Host::show);
        let history = self.check(load).inspect_err(show)?;
        let seen = self.watch.seen();
        println!(
            "{} operations, {} writes acknowledged, longest wait {:.1} s, last term {}",
            history.events.len(),
            history.acked.len(),
            history
                .longest_gap(Duration::ZERO, history.acked.last().map_or(Duration::ZERO, |a| a.at))
                .as_secs_f64(),
            seen.term()
        );
        Ok(history)
    }

    fn check(&self, load: Load) -> anyhow::Result<History> {
        // Something must still be possible, or the rest would hold for a mesh that is dead.
        load.progress(3, SETTLE).context("no write is acknowledged any more")?;
        let history = load.stop();
        self.settle()?;
        history.linearizable().map_err(|wrong| anyhow::anyhow!("D, linearizable: {wrong}"))?;
        for host in self.running() {
            let client = host.client();
            let told = |promise: &str, wrong: String| {
                anyhow::anyhow!("{promise}, seen at {}: {wrong}", host.name)
            };
            history
                .acked_survive(&self.party, &client)
                .map_err(|wrong| told("A, acknowledged writes survive", wrong))?;
            history
                .stale_refused(&self.party, &client)
                .map_err(|wrong| told("E, who is late is refused", wrong))?;
        }
        // B and C, after everyone has been seen at rest.
        std::thread::sleep(Duration::from_millis(300));
        self.watch
            .seen()
            .consistent()
            .map_err(|wrong| anyhow::anyhow!("B and C, one leader and one history: {wrong}"))?;
        for host in &self.hosts {
            let fell = host.fell();
            ensure!(fell.is_none(), "a node fell: {}", fell.unwrap_or_default());
        }
        Ok(history)
    }
}
