//! What tasks ask for, taken apart so that what is alike is worked out once.
//!
//! Ten thousand jobs that wait are seldom ten thousand different ones. A **site** says which nodes may run a task at all and
//! how far the data is from each; a **kind** says which GPUs will do; a **need** is how much. The three are a **shape**.
//! Tasks of one shape are alike to the planner: where one finds no room, the next need not look.

use std::collections::BTreeMap;

use mesh_consensus::id::PartyId;
use serde::Serialize;

use super::board::Node;
use super::feasible::{self, Ask};
use super::rank::{self, Candidate};
use super::view::Waiting;
use crate::job::spec::{DEFAULT_CPU_MILLI, DEFAULT_MEMORY_BYTES};
use crate::job::{GpuAsk, Range, Resources};
use crate::state::name::Name;

/// How much a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Need {
    pub(super) gpus: u32,
    pub(super) cpu: u64,
    pub(super) memory: u64,
    pub(super) disk: u64,
}

impl Need {
    /// What it cannot do without.
    pub(super) fn least(resources: &Resources) -> Self {
        Self {
            gpus: u32::try_from(resources.least_gpus()).unwrap_or(u32::MAX),
            cpu: resources.least_cpu_milli(),
            memory: resources.least_memory_bytes(),
            disk: resources.disk_bytes,
        }
    }

    /// What it can use.
    pub(super) fn most(resources: &Resources) -> Self {
        let top = |range: Option<Range>, default| range.map_or(default, |range| range.max);
        let gpus = resources.gpus.as_ref().map_or(0, |gpus| gpus.count.max);
        Self {
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            cpu: top(resources.cpu_milli, DEFAULT_CPU_MILLI),
            memory: top(resources.memory_bytes, DEFAULT_MEMORY_BYTES),
            disk: resources.disk_bytes,
        }
    }
}

/// Site and kind by number, the least and the most that is needed, and ports.
pub(super) type ShapeKey = (usize, Option<usize>, Need, Need, Vec<u16>);

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) site: usize,
    pub(super) kind: Option<usize>,
    pub(super) need: Need,
    pub(super) most: Need,
    /// Ports by number.
    pub(super) ports: Vec<u16>,
    /// The last epoch of the board at which no node had room for it.
    pub(super) failed: Option<u64>,
    /// Whether a node at hand could take it, were it empty; `None` if nobody has looked.
    pub(super) possible: Option<bool>,
}

/// The nodes at hand that may run a task, by number.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) candidates: Vec<Candidate>,
}

impl Site {
    /// What the site depends on, and nothing else: its code is small, and different for every job.
    pub(super) fn key(waiting: &Waiting, group: usize) -> Vec<u8> {
        #[derive(Serialize)]
        struct Key<'a>(
            PartyId,
            Option<PartyId>,
            &'a BTreeMap<Name, crate::state::label::LabelValue>,
            &'a std::collections::BTreeSet<Name>,
            &'a Option<String>,
            &'a Option<Name>,
            &'a Option<crate::job::Image>,
            Vec<(mesh_consensus::id::VersionId, u64)>,
            &'a Option<Name>,
            bool,
        );
        let (spec, place) = (&waiting.spec, &waiting.spec.place);
        let key = Key(
            waiting.party,
            waiting.confined,
            &place.labels,
            &place.nodes,
            &place.arch,
            &place.party,
            &spec.groups[group].image,
            spec.data.values().filter_map(|mount| Some((mount.version()?, mount.bytes))).collect(),
            &spec.groups[group].party,
            spec.training.is_some(),
        );
        postcard::to_stdvec(&key).expect("plain data always encodes")
    }

    pub(super) fn new(
        waiting: &Waiting,
        group: usize,
        nodes: &[Node],
        names: &BTreeMap<PartyId, Name>,
    ) -> Self {
        let spec = &waiting.spec;
        let group = &spec.groups[group];
        let ask = Ask { spec, group, party: waiting.party, confined: waiting.confined };
        let may =
            |node: &Node| node.is_present() && feasible::bars(&ask, &node.offer, names).is_none();
        let candidates = nodes.iter().enumerate().filter(|(_, node)| may(node));
        let candidates = candidates.map(|(at, node)| rank::candidate(at, spec, group, &node.offer));
        Self { candidates: candidates.collect() }
    }

    pub(super) fn find(&self, node: usize) -> Option<&Candidate> {
        let at = self.candidates.binary_search_by_key(&node, |each| each.node as usize).ok()?;
        Some(&self.candidates[at])
    }
}

/// Which GPUs will do.
#[derive(Debug)]
pub(super) struct Kind {
    /// By node.
    pub(super) masks: Vec<u128>,
}

impl Kind {
    pub(super) fn key(ask: &GpuAsk) -> Vec<u8> {
        let GpuAsk { count: _, min_memory_mib, max_memory_mib, models, mig } = ask;
        postcard::to_stdvec(&(min_memory_mib, max_memory_mib, models, mig))
            .expect("plain data always encodes")
    }

    pub(super) fn new(ask: &GpuAsk, nodes: &[Node]) -> Self {
        Self { masks: nodes.iter().map(|node| feasible::matching(ask, &node.gpus)).collect() }
    }
}

/// Things by what they are: two that are alike are one. Each is there as long as somebody uses it.
#[derive(Debug)]
pub(super) struct Interned<K, T> {
    ids: BTreeMap<K, usize>,
    slots: Vec<Option<Slot<K, T>>>,
    empty: Vec<usize>,
}

#[derive(Debug)]
struct Slot<K, T> {
    key: K,
    users: usize,
    thing: T,
}

impl<K, T> Default for Interned<K, T> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), slots: Vec::new(), empty: Vec::new() }
    }
}

impl<K: Ord + Clone, T> Interned<K, T> {
    /// One more user of the thing with this key.
    pub(super) fn enter(&mut self, key: K, make: impl FnOnce() -> T) -> usize {
        if let Some(&id) = self.ids.get(&key) {
            self.slot(id).users += 1;
            return id;
        }
        let slot = Some(Slot { key: key.clone(), users: 1, thing: make() });
        let id = match self.empty.pop() {
            Some(id) => {
                self.slots[id] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.ids.insert(key, id);
        id
    }

    /// One user less.
    pub(super) fn leave(&mut self, id: usize) {
        let slot = self.slot(id);
        slot.users -= 1;
        if slot.users == 0
            && let Some(slot) = self.slots[id].take()
        {
            self.ids.remove(&slot.key);
            self.empty.push(id);
        }
    }

    fn slot(&mut self, id: usize) -> &mut Slot<K, T> {
        self.slots[id].as_mut().expect("whoever has an id uses it")
    }
}

impl<K, T> std::ops::Index<usize> for Interned<K, T> {
    type Output = T;

    #[inline]
    fn index(&self, id: usize) -> &T {
        &self.slots[id].as_ref().expect("whoever has an id uses it").thing
    }
}

impl<K, T> std::ops::IndexMut<usize> for Interned<K, T> {
    fn index_mut(&mut self, id: usize) -> &mut T {
        &mut self.slots[id].as_mut().expect("whoever has an id uses it").thing
    }
}
