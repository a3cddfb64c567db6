//! What came of the runs, in figures.

use crate::field::Split;
use crate::settings::Settings;
use crate::simulation::{Outcome, POLICIES, Policy};

/// What a job does that says nothing about those who are slow. Both goals are about this one: a policy that is quick because it
/// leaves the slow out would else be praised for the one, and another for the other.
const SHIPPED: Policy = Policy::Deadline;

/// The figures of one policy, for one seed.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) split: Split,
    pub(crate) seed: u64,
    pub(crate) policy: Policy,
    /// Virtual seconds until the target; `None` if it was not reached in the time that waiting for all took.
    pub(crate) seconds: Option<f64>,
    /// How many times faster than waiting for all.
    pub(crate) speed_up: f64,
    /// Points below waiting for all on the digits of the slow, when each had reached the target, or had no more time.
    pub(crate) loss: f64,
    /// The accuracy of all then, in percent.
    pub(crate) accuracy: f64,
    pub(crate) models: u32,
    /// Parties of which nothing is in any model.
    pub(crate) unused: usize,
}

impl Run {
    pub(crate) fn new(
        settings: &Settings,
        split: Split,
        seed: u64,
        policy: Policy,
        outcome: &Outcome,
        all: &Outcome,
    ) -> Self {
        let open = &settings.open;
        let reached = |outcome: &Outcome| outcome.reached(open.target, open.in_a_row);
        let (own, other) = (reached(outcome), reached(all));
        let end = |outcome: &Outcome| outcome.end(open.in_a_row);
        let (own_end, other_end) =
            (own.unwrap_or_else(|| end(outcome)), other.unwrap_or_else(|| end(all)));
        // Of what has not got there, nothing is known but that it takes longer.
        let speed_up = own.map_or(0.0, |own| other_end.at_ms as f64 / own.at_ms as f64);
        let parties: usize = settings.paper.parties.iter().sum();
        let used = outcome.records.values().filter(|record| record.taken > 0).count();
        Self {
            split,
            seed,
            policy,
            seconds: own.map(|point| point.at_ms as f64 / 1000.0),
            speed_up,
            loss: 100.0 * (other_end.rare - own_end.rare),
            accuracy: 100.0 * own_end.accuracy,
            models: outcome.models,
            unused: parties - used,
        }
    }

    /// In a few words.
    pub(crate) fn told(&self) -> String {
        let Self { policy, speed_up, loss, accuracy, .. } = self;
        let name = policy.name();
        format!("{name}: {speed_up:.2} times as fast, {loss:.2} points lost, {accuracy:.2} %")
    }
}

/// Smallest, middle and largest.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => [f64::NAN; 3],
        n => [values[0], values[n / 2], values[n - 1]],
    }
}

fn of(runs: &[Run], split: Split, policy: Policy, figure: fn(&Run) -> f64) -> [f64; 3] {
    let own = runs.iter().filter(|run| run.split == split && run.policy == policy);
    spread(own.map(figure).collect())
}

pub(crate) fn print(settings: &Settings, runs: &[Run], json: bool) {
    if !json {
        tables(settings, runs);
    }
    let speed_up = |policy| of(runs, Split::Paper, policy, |run| run.speed_up)[1];
    let rivals = || POLICIES.into_iter().filter(|policy| *policy != Policy::All);
    let loss = |policy| of(runs, Split::Slow, policy, |run| run.loss)[1];
    let n = settings.open.seeds.len();
    type Goal<'a> = (&'a str, &'a str, f64, &'a str, &'a dyn Fn(Policy) -> f64);
    let goals: [Goal<'_>; 2] = [
        ("time_to_97_vs_wait_for_all", ">=", 3.0, "ratio", &speed_up),
        ("slow_classes_accuracy_loss_points", "<=", 1.0, "points", &loss),
    ];
    for (name, sign, want, unit, figure) in goals {
        let got = figure(SHIPPED);
        let peers: Vec<(&str, f64)> =
            rivals().map(|policy| (policy.name(), figure(policy))).collect();
        if json {
            let peers: Vec<String> = peers
                .iter()
                .map(|(name, value)| format!("\"{name}\":{}", number(*value)))
                .collect();
            println!(
                "{{\"bench\":\"stragglers\",\"goal\":\"{name}\",\"got\":{},\"want\":{want},\"unit\":\"{unit}\",\
                 \"n\":{n},\"peer\":{{{}}},\"limit\":null}}",
                number(got),
                peers.join(",")
            );
        } else {
            let met = if sign == ">=" { got >= want } else { got <= want };
            let verdict = if met { "met" } else { "MISSED" };
            let peers: Vec<String> =
                peers.iter().map(|(name, value)| format!("{name} {value:.2}")).collect();
            println!(
                "{name:<34} {got:>7.2} {unit:<7} {sign} {want:<3} {verdict:<7} ({}; {}; {n} seeds)",
                SHIPPED.name(),
                peers.join(", ")
            );
        }
    }
}

/// As JSON has it.
fn number(value: f64) -> String {
    if value.is_finite() { format!("{value:.4}") } else { "null".into() }
}

fn tables(settings: &Settings, runs: &[Run]) {
    let target = 100.0 * settings.open.target;
    for split in [Split::Paper, Split::Slow] {
        println!(
            "\n{}; median of {} seeds (least – most)",
            split.name(),
            settings.open.seeds.len()
        );
        println!(
            "{:<18} {:>26} {:>22} {:>26} {:>26} {:>8} {:>7}",
            "",
            format!("s until {target} %"),
            "times faster",
            "slow digits: points lost",
            "accuracy then, %",
            "models",
            "unused"
        );
        for policy in POLICIES {
            let show = |figure: fn(&Run) -> f64, digits: usize| {
                let [low, middle, high] = of(runs, split, policy, figure);
                format!("{middle:.digits$} ({low:.digits$} – {high:.digits$})")
            };
            println!(
                "{:<18} {:>26} {:>22} {:>26} {:>26} {:>8} {:>7}",
                policy.name(),
                show(|run| run.seconds.unwrap_or(f64::NAN), 0),
                show(|run| run.speed_up, 2),
                show(|run| run.loss, 2),
                show(|run| run.accuracy, 2),
                of(runs, split, policy, |run| run.models.into())[1],
                of(runs, split, policy, |run| run.unused as f64)[2],
            );
        }
    }
    println!();
}
