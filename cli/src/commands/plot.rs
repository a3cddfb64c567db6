//! `mesh plot`: how trainings went, as curves.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::status::warn_of_age;
use crate::answers::Course;
use crate::context::{Context, note, print, print_json};
use crate::course::in_order;
use crate::plot::{Look, Series, draw};
use crate::report::{Code, Outcome, Report};
use crate::value;
use crate::view::{Paint, clean, is_utf8, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh plot mnist                        its accuracy, or whatever it measures, round by round
  mesh plot mnist --metric loss
  mesh plot 1a2b 7f3a 91cc               several trainings in one plot
  mesh plot mnist --json | jq -r '.items[].points[] | [.round, .value] | @tsv'

Only jobs that train have curves. Each point is the mean over the participants of a round, by their
examples. mesh stragglers JOB shows who took how long.";

/// What `plot` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Plot {
    /// Which jobs
    #[arg(required = true, value_name = "JOB", value_parser = value::job)]
    jobs: Vec<String>,
    /// What to draw [default: accuracy if they have it, or loss]
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    metric: Option<String>,
}

pub(crate) async fn run(plot: &Plot, context: &Context) -> Outcome {
    let api = context.api()?;
    let mut answers = Vec::new();
    for job in &plot.jobs {
        answers.push(api.get(&format!("/v1/jobs/{job}/course")).await?);
    }
    let mut courses: Vec<Course> = Vec::new();
    for answer in &answers {
        let course: Course = answer.item()?;
        if !courses.iter().any(|known| known.id == course.id) {
            courses.push(course);
        }
    }
    let metric = chosen(&courses, plot.metric.as_deref())?;
    if context.json {
        let items = points(&courses, metric.as_deref());
        // It is as fresh as the first of them.
        let made = answers.first().map(|answer| answer.around("items", items));
        return print_json(&made.unwrap_or_default());
    }
    if let Some(answer) = answers.first() {
        warn_of_age(answer);
    }
    let Some(metric) = metric else {
        note("No round has told any metric yet. mesh stragglers JOB shows how it goes.");
        return Ok(ExitCode::SUCCESS);
    };
    let look = Look {
        width: width(),
        paint: Paint::stdout(),
        utf8: is_utf8(|name| std::env::var(name).ok()),
    };
    print(&draw(&metric, &series(&courses, &metric), look))
}

/// What is drawn: what was asked for, or what matters most of what there is. `None` if nothing was measured yet.
fn chosen(courses: &[Course], asked: Option<&str>) -> Result<Option<String>, Report> {
    let points = courses.iter().flat_map(|course| &course.curve);
    let known = in_order(points.flat_map(|point| point.metrics.keys().map(String::as_str)));
    match asked {
        None => Ok(known.first().map(|name| (*name).to_owned())),
        Some(asked) if known.is_empty() || known.contains(&asked) => Ok(Some(asked.to_owned())),
        Some(asked) => {
            let cause = clean(&format!("there are: {}", known.join(", ")));
            let hint = clean(&format!("--metric {}", known[0]));
            let message = format!("no round has told {asked:?}");
            Err(Report::new(Code::Failed, message, cause, hint))
        }
    }
}

fn series(courses: &[Course], metric: &str) -> Vec<Series> {
    let one = |course: &Course| {
        let points = course.curve.iter();
        let points = points.filter_map(|point| Some((point.round, *point.metrics.get(metric)?)));
        Series { label: course.called(), points: points.collect() }
    };
    courses.iter().map(one).collect()
}

/// The same for scripts.
fn points(courses: &[Course], metric: Option<&str>) -> Value {
    let one = |course: &Course| {
        let points = course.curve.iter().filter_map(|point| {
            let value = point.metrics.get(metric?)?;
            Some(json!({ "round": point.round, "at": point.at, "value": value }))
        });
        let points: Vec<Value> = points.collect();
        json!({
            "id": course.id, "name": course.name, "metric": metric, "rounds": course.rounds,
            "points": points,
        })
    };
    courses.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::tests::three;

    fn courses() -> Vec<Course> {
        let mut other = three();
        (other["id"], other["name"]) = (json!("77b0".repeat(8)), json!("other"));
        other["curve"] = json!([{ "round": 1, "at": null, "metrics": { "loss": 0.7 } }]);
        vec![serde_json::from_value(three()).unwrap(), serde_json::from_value(other).unwrap()]
    }

    #[test]
    fn what_matters_most_is_drawn_unless_something_else_is_asked_for() {
        let all = courses();
        assert_eq!(chosen(&all, None).unwrap().as_deref(), Some("accuracy"));
        assert_eq!(chosen(&all[1..], None).unwrap().as_deref(), Some("loss"));
        assert_eq!(chosen(&all, Some("f1")).unwrap().as_deref(), Some("f1"));
        let wrong = chosen(&all, Some("f2")).unwrap_err();
        assert_eq!(wrong.message, "no round has told \"f2\"");
        assert_eq!(wrong.cause, "there are: accuracy, loss, f1");
        assert_eq!(wrong.hint, "--metric accuracy");
        assert_eq!(chosen(&[Course::default()], None).unwrap(), None);
        assert_eq!(chosen(&[], Some("loss")).unwrap().as_deref(), Some("loss"));
    }

    #[test]
    fn a_curve_has_the_rounds_that_told_it() {
        let drawn = series(&courses(), "loss");
        assert_eq!(drawn[0].label, "mnist (1a2b3c4d)");
        assert_eq!(drawn[0].points, [(1, 1.5), (2, 0.9), (3, 0.21)]);
        assert_eq!(drawn[1].points, [(1, 0.7)]);
        assert!(series(&courses(), "accuracy")[1].points.is_empty());
        let items = points(&courses(), Some("loss"));
        assert_eq!(items[0]["points"][2]["value"], 0.21);
        assert_eq!(items[0]["points"][2]["round"], 3);
        assert_eq!((&items[1]["name"], &items[1]["metric"]), (&json!("other"), &json!("loss")));
        assert_eq!(points(&courses(), None)[0]["points"], json!([]));
    }
}
