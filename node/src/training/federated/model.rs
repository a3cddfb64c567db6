//! A round closes: its sum becomes a model, two nodes hold that, and one entry commits it and opens the next round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::{join_all, try_join, try_join_all};
use mesh_consensus::id::NodeId;
use tokio::time::sleep;

use super::plan::{self, There};
use super::rounds::{Coordinator, Done, Stop};
use super::view::Seen;
use crate::data::chain;
use crate::job::training::NoiseAt;
use crate::state::course::{CourseCharge, Model, Open, Piece};
use crate::training::round::Sum;
use crate::training::wire::{Answer, Ask};
use crate::training::{aggregate, pieces, shards};

/// Between two tries to find somebody who holds a second copy.
const AGAIN: Duration = Duration::from_millis(500);

/// A piece, and who has it.
pub(super) type Lying = (Piece, NodeId);

/// What was made of a shard.
struct Summed {
    weights: Piece,
    optimiser: Option<Piece>,
    layout: Option<Piece>,
}

/// Why there is no sum.
enum Unsummed {
    /// This node did not answer.
    Silent(NodeId, String),
    /// One said no.
    No(String),
}

/// Why a model is not held.
enum Unheld {
    /// This node did not give what it should have.
    Gone(NodeId, String),
    /// There is more to it.
    Stop(Stop),
}

impl Coordinator<'_> {
    /// Closes a round.
    pub(super) async fn close(&mut self, seen: &Seen, open: &Open, sum: Sum) -> Result<(), Stop> {
        self.charge(seen, open, &sum).await?;
        let summed = match self.sum(open, &sum).await {
            Ok(summed) => summed,
            Err(Unsummed::Silent(node, why)) => {
                self.shun(node);
                return Err(Stop::Later(why));
            }
            Err(Unsummed::No(why)) => return self.failed(open.round, why).await,
        };
        let standing = seen.course.model.as_ref();
        let first = summed.iter().find_map(|summed| summed.layout);
        let Some(layout) = standing.map(|model| model.layout).or(first) else {
            return self.failed(open.round, "the first model came without its layout".into()).await;
        };
        let mut weights: Vec<Lying> = Vec::new();
        let mut kept: Vec<Lying> = Vec::new();
        for (shard, node) in summed.iter().zip(&open.aggregators) {
            weights.push((shard.weights, *node));
            kept.extend(shard.optimiser.map(|piece| (piece, *node)));
        }
        if kept.len() != weights.len() {
            kept.clear();
        }
        if standing.is_none() {
            weights = self.cut(seen, weights).await?;
        }
        // Whoever summed the first shard of the first model has its layout; later, whoever holds the model.
        let me = self.handle.whoami.node;
        let has_layout = match standing {
            Some(model) if model.holders.contains(&me) => Some(me),
            Some(model) => model.holders.first().copied(),
            None => open.aggregators.first().copied(),
        };
        let mut lying = vec![(layout, has_layout.unwrap_or(me))];
        lying.extend(weights.iter().chain(&kept));
        let holders = self.hold(seen, &lying).await?;
        let model = Model {
            round: open.round,
            layout,
            weights: weights.iter().map(|(piece, _)| *piece).collect(),
            optimiser: kept.iter().map(|(piece, _)| *piece).collect(),
            holders,
        };
        self.commit(model, sum).await
    }

    /// Commits a model together with the round after it.
    async fn commit(&mut self, model: Model, sum: Sum) -> Result<(), Stop> {
        // While it was made, participants may have come and gone, and budgets were charged.
        let seen = self.look().await?;
        let Sum { counted, metrics, .. } = sum;
        let is_last = model.round >= seen.asked.rounds;
        let next = if is_last { None } else { self.next(&seen, Some(&model), &counted) };
        tracing::debug!(round = model.round, "a round is committed");
        let done = Done { model: Some(model), counted, metrics };
        let acts = self.go_on(&seen, done, next);
        self.write(acts).await
    }

    /// Charges a round before noise is drawn for it, where that is done by those who sum.
    async fn charge(&self, seen: &Seen, open: &Open, sum: &Sum) -> Result<(), Stop> {
        let privacy = seen.asked.privacy.as_ref();
        let is_due = privacy.is_some_and(|privacy| privacy.at == NoiseAt::Aggregator);
        if !is_due || open.round == 0 {
            return Ok(());
        }
        let tasks = sum.parts.iter().map(|part| part.task).collect();
        let (job, epoch, round) = (self.job, self.epoch, open.round);
        self.write(vec![CourseCharge { job, epoch, round, tasks }.into()]).await
    }

    /// Has every shard summed by those who have it.
    async fn sum(&self, open: &Open, sum: &Sum) -> Result<Vec<Summed>, Unsummed> {
        let (job, epoch) = (self.job, self.epoch);
        let asked = (0..).zip(open.aggregators.iter().copied()).map(|(shard, node)| {
            let ask = Ask::Sum {
                job,
                epoch,
                round: open.round,
                shard,
                parts: sum.parts.clone(),
                divisor: sum.divisor,
                noise: sum.noise,
            };
            self.ask(node, ask)
        });
        let answers = join_all(asked).await;
        let answers = open.aggregators.iter().zip(answers);
        let summed = answers.map(|(node, answer)| match answer {
            Ok(Answer::Summed { weights, optimiser, layout }) => {
                Ok(Summed { weights, optimiser, layout })
            }
            Ok(Answer::No(why)) => Err(Unsummed::No(why.to_string())),
            Ok(_) => Err(Unsummed::No("an aggregator answered another question".into())),
            Err(why) => Err(Unsummed::Silent(*node, why)),
        });
        summed.collect()
    }

    /// Asks something that may take long, for as long as the other node is there.
    async fn ask(&self, node: NodeId, ask: Ask) -> Result<Answer, String> {
        let mut away = self.away.clone();
        let gone = async { away.wait_for(|away| away.contains(&node)).await.is_ok() };
        tokio::select! {
            answer = aggregate::ask(self.handle, node, ask) => {
                answer.map_err(|error| chain(&error))
            }
            true = gone => Err(format!("{} does not answer any more", node.short())),
        }
    }

    /// The first model comes whole. It is cut here into as many shards as there will be from now on.
    async fn cut(&self, seen: &Seen, weights: Vec<Lying>) -> Result<Vec<Lying>, Stop> {
        let [(whole, from)] = weights[..] else { return Ok(weights) };
        let (_, awake) = self.there(seen);
        let count = shards::count_for(whole.bytes / 4, awake.len());
        if count <= 1 {
            return Ok(weights);
        }
        let bytes = pieces::fetch(self.handle, self.job, whole, &[from]).await;
        let bytes = bytes.map_err(|error| Stop::Later(chain(&error)))?;
        let values = whole.bytes / 4;
        let cut = (0..count).map(move |shard| {
            let range = shards::range(values, count, shard);
            bytes.get(4 * range.start..4 * range.end).map(<[u8]>::to_vec).unwrap_or_default()
        });
        self.put(cut).await
    }

    /// Keeps pieces here.
    pub(super) async fn put(
        &self,
        bytes: impl Iterator<Item = Vec<u8>> + Send + 'static,
    ) -> Result<Vec<Lying>, Stop> {
        let (pieces, job, me) =
            (self.handle.training.pieces.clone(), self.job, self.handle.whoami.node);
        let put = tokio::task::spawn_blocking(move || {
            let put = bytes.map(|bytes| pieces.put(job, bytes).map(|piece| (piece, me)));
            put.collect::<std::io::Result<Vec<Lying>>>()
        });
        match put.await {
            Ok(put) => put.map_err(|error| Stop::Later(format!("a model is not kept: {error}"))),
            Err(_) => Err(Stop::Later("a model was not kept".into())),
        }
    }

    /// Sees to it that this node and another one hold all pieces of a model: who does.
    pub(super) async fn hold(
        &mut self,
        seen: &Seen,
        lying: &[Lying],
    ) -> Result<BTreeSet<NodeId>, Stop> {
        // Two shards may have the same bytes.
        let lying: BTreeMap<Piece, NodeId> = lying.iter().copied().collect();
        let both = try_join(self.hold_here(seen, &lying), self.hold_elsewhere(seen, &lying)).await;
        match both {
            Ok(((), second)) => Ok([self.handle.whoami.node].into_iter().chain(second).collect()),
            // What it has made is gone with it.
            Err(Unheld::Gone(node, why)) => {
                self.shun(node);
                Err(Stop::Later(why))
            }
            Err(Unheld::Stop(stop)) => Err(stop),
        }
    }

    async fn hold_here(&self, seen: &Seen, lying: &BTreeMap<Piece, NodeId>) -> Result<(), Unheld> {
        let (handle, job) = (self.handle, self.job);
        let holders = seen.course.model.iter().flat_map(|model| &model.holders);
        let holders: Vec<NodeId> = holders.copied().collect();
        let held = lying.iter().map(|(piece, node)| {
            let from = [&[*node][..], &holders[..]].concat();
            async move {
                let held = handle.training.hold(job, *piece, &from).await;
                held.map_err(|error| Unheld::Gone(*node, chain(&error)))
            }
        });
        try_join_all(held).await.map(drop)
    }

    /// Another node holds them as well; none if there is no other member. Tries until somebody does.
    async fn hold_elsewhere(
        &self,
        seen: &Seen,
        lying: &BTreeMap<Piece, NodeId>,
    ) -> Result<Option<NodeId>, Unheld> {
        let me = self.handle.whoami.node;
        let mut seen = seen.clone();
        let mut from: Vec<NodeId> = lying.values().copied().collect();
        loop {
            if seen.members <= 1 {
                return Ok(None);
            }
            let (away, awake) = self.there(&seen);
            let there = There { me, away: &away, awake: &awake };
            for node in plan::seconds(&seen, there) {
                let ask = Ask::Keep {
                    job: self.job,
                    pieces: lying.keys().copied().collect(),
                    from: from.clone(),
                };
                match self.ask(node, ask).await {
                    Ok(Answer::Kept) => return Ok(Some(node)),
                    answer => {
                        tracing::debug!(node = %node.short(), ?answer, "a node holds no copy");
                    }
                }
            }
            sleep(AGAIN).await;
            seen = self.look().await.map_err(Unheld::Stop)?;
            // By now this node has them all.
            from.fill(me);
        }
    }
}
