//! The demo as a live picture.

use std::io;
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, BorderType, Cell, Chart, Dataset, GraphType, Paragraph, Row, Table,
};
use ratatui::{Frame, Terminal};
use tokio::time::sleep;

use super::course::Participant;
use super::scene::{Event, Mode, Scene, Seen, percent};
use super::{GOAL, Stage};
use crate::report::{Code, Report};
use crate::screen::{Key, Screen};

const FRAME: Duration = Duration::from_millis(66);
/// How long the bar of the slowest party is.
const BAR: usize = 24;

/// Draws until somebody stops it, which is the report that it returns. Without a picture it waits forever.
pub(super) async fn show(stage: &Stage, mode: Mode) -> Report {
    if mode != Mode::Picture {
        return std::future::pending().await;
    }
    match draw(stage).await {
        Ok(()) => {
            let cause = "it was asked to stop before the story was over";
            Report::new(Code::Interrupted, "interrupted", cause, "mesh demo")
        }
        Err(error) => Report::failed(&error.into(), "mesh demo | cat"),
    }
}

async fn draw(stage: &Stage) -> io::Result<()> {
    let mut screen = Screen::open()?;
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    let coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    loop {
        terminal.draw(|frame| render(frame, &stage.scene.borrow(), coloured))?;
        tokio::select! {
            key = screen.key() => if key != Key::Resized { return Ok(()) },
            () = sleep(FRAME) => {}
        }
    }
}

/// Colours, if there are any, and two ways to be seen more or less.
#[derive(Clone, Copy)]
struct Ink {
    coloured: bool,
}

impl Ink {
    fn of(self, color: Color) -> Style {
        if self.coloured { Style::new().fg(color) } else { Style::new() }
    }

    fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn boxed<'a>(self, title: impl Into<Line<'a>>) -> Block<'a> {
        let block = Block::bordered().border_type(BorderType::Rounded);
        block.border_style(self.faint()).title(title)
    }
}

fn render(frame: &mut Frame<'_>, scene: &Scene, coloured: bool) {
    let ink = Ink { coloured };
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let [head, nodes, curve, parties, events, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(6),
        Constraint::Fill(3),
        Constraint::Length(6),
        Constraint::Fill(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());

    let clock = format!("{:.1} s", scene.elapsed_ms() as f64 / 1000.0);
    let what = " · three parties train one model, and nobody's images leave their party";
    let title = vec![Span::styled("mesh demo", strong), what.into()];
    frame.render_widget(Paragraph::new(Line::from(title)), head);
    frame.render_widget(Paragraph::new(clock).right_aligned(), head);

    render_nodes(frame, scene, ink, nodes);
    render_curve(frame, scene, ink, curve);
    render_parties(frame, scene, ink, parties);
    render_events(frame, scene, ink, events);

    let failover = match scene.failover_ms {
        Some(ms) => Span::styled(
            format!("failover {ms} ms"),
            ink.of(Color::Green).add_modifier(Modifier::BOLD),
        ),
        None => Span::styled("failover not measured yet", ink.faint()),
    };
    let state = match (scene.is_over, scene.accuracy) {
        (true, Some(accuracy)) => format!("done: {} of the test images", percent(accuracy)),
        (true, None) => "done".into(),
        (false, _) => "q stops".into(),
    };
    frame.render_widget(Paragraph::new(Line::from(failover)), foot);
    frame.render_widget(Paragraph::new(Span::styled(state, ink.faint())).right_aligned(), foot);
}

fn render_nodes(frame: &mut Frame<'_>, scene: &Scene, ink: Ink, area: Rect) {
    let coordinator = scene.course.as_ref().and_then(|course| course.coordinator.as_deref());
    let rows = scene.nodes.iter().map(|node| {
        let style = match node.part() {
            "leader" => ink.of(Color::Green).add_modifier(Modifier::BOLD),
            "killed" => ink.of(Color::Red),
            "not up" => ink.faint(),
            _ => Style::new(),
        };
        Row::new(cells(node, coordinator)).style(style)
    });
    let widths = [
        Constraint::Length(1),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Min(0),
    ];
    let heads = Row::new(["", "NAME", "PARTY", "ROLE", "TERM", "INDEX", ""]).style(ink.faint());
    let table = Table::new(rows, widths).column_spacing(2).block(ink.boxed(" nodes "));
    frame.render_widget(table.header(heads), area);
}

fn cells(node: &Seen, coordinator: Option<&str>) -> [String; 7] {
    let sign = match node.part() {
        "leader" => "★",
        "killed" => "✗",
        "not up" => "·",
        _ => "●",
    };
    let (term, index, follows) = node.status.as_ref().map_or_else(Default::default, |status| {
        let follows = match status.is_leader {
            true => String::new(),
            false => format!("follows {}", status.leader.shown()),
        };
        (status.term.to_string(), status.index.to_string(), follows)
    });
    let note = match (coordinator == Some(node.name), follows.is_empty()) {
        (true, true) => "coordinates".into(),
        (true, false) => format!("coordinates, {follows}"),
        (false, _) => follows,
    };
    [sign.into(), node.name.into(), node.party.into(), node.part().into(), term, index, note]
}

/// Accuracy, round by round; what is wanted, and where the leader was killed.
fn render_curve(frame: &mut Frame<'_>, scene: &Scene, ink: Ink, area: Rect) {
    let curve = scene.course.as_ref().map(|course| course.curve.as_slice()).unwrap_or_default();
    let known = curve.iter().filter_map(|point| Some((point.round as f64, point.accuracy()?)));
    let points: Vec<(f64, f64)> = known.map(|(round, share)| (round, share * 100.0)).collect();
    let (last, low) = (scene.rounds as f64, lowest(&points));
    let goal = [(0.0, GOAL * 100.0), (last, GOAL * 100.0)];
    let killed: Vec<(f64, f64)> = match scene.killed_at {
        Some(round) => vec![(round as f64, low), (round as f64, 100.0)],
        None => Vec::new(),
    };
    let line = |points, style| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .data(points)
            .style(style)
    };
    let lines = vec![
        line(&goal[..], ink.faint()),
        line(&killed[..], ink.of(Color::Red)),
        line(&points[..], ink.of(Color::Green)),
    ];
    // Where there are few lines, labels would lie upon one another.
    let mut heights = vec![low, 100.0];
    if area.height >= 8 {
        heights.insert(1, (low + 100.0) / 2.0);
    }
    let heights: Vec<String> = heights.iter().map(|height| format!("{height:.0} %")).collect();
    let rounds = ["0".to_owned(), (scene.rounds / 2).to_string(), scene.rounds.to_string()];
    let y = Axis::default().bounds([low, 100.0]).labels(heights).style(ink.faint());
    let x = Axis::default().bounds([0.0, last.max(1.0)]).labels(rounds).style(ink.faint());
    let title = match (scene.committed(), scene.last_accuracy()) {
        (Some(round), Some(accuracy)) => {
            format!(" round {round}/{} · accuracy {} ", scene.rounds, percent(accuracy))
        }
        (Some(round), None) => format!(" round {round}/{} ", scene.rounds),
        (None, _) => " accuracy ".to_owned(),
    };
    frame.render_widget(Chart::new(lines).x_axis(x).y_axis(y).block(ink.boxed(title)), area);
}

/// Where the axis begins: below all that was measured, and below what is wanted.
fn lowest(points: &[(f64, f64)]) -> f64 {
    let least = points.iter().map(|(_, accuracy)| *accuracy).fold(90.0, f64::min);
    ((least / 10.0).floor() * 10.0 - 10.0).clamp(0.0, 80.0)
}

fn render_parties(frame: &mut Frame<'_>, scene: &Scene, ink: Ink, area: Rect) {
    let all = scene.course.as_ref().map(|course| course.participants.as_slice());
    let all = all.unwrap_or_default();
    let most = all.iter().map(Participant::whole_ms).max().unwrap_or(0);
    let rows = all.iter().map(|one| {
        let style = match one.standing.as_str() {
            "slow" | "late" => ink.of(Color::Yellow),
            "dropped" | "refused" => ink.of(Color::Red),
            _ => Style::new(),
        };
        let [fetch, compute, upload] = lengths(one.times(), most, BAR);
        let bar = Line::from(vec![
            Span::styled("▒".repeat(fetch), ink.of(Color::Blue)),
            Span::styled("█".repeat(compute), style),
            Span::styled("░".repeat(upload), ink.of(Color::Magenta)),
        ]);
        Row::new([
            Cell::from(one.party.clone()),
            Cell::from(one.standing.clone()),
            Cell::from(one.taken.to_string()),
            Cell::from(one.late.to_string()),
            Cell::from(one.missed.to_string()),
            Cell::from(format!("{:>5} ms", one.whole_ms())),
            Cell::from(bar),
        ])
        .style(style)
    });
    let widths = [
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Min(0),
    ];
    let times = "▒ fetch █ compute ░ upload";
    let heads = ["PARTY", "STANDING", "TAKEN", "LATE", "MISSED", "A ROUND", times];
    let table = Table::new(rows, widths).column_spacing(1).block(ink.boxed(" parties "));
    frame.render_widget(table.header(Row::new(heads).style(ink.faint())), area);
}

/// How long each part of a bar is, if the longest bar of all has so many cells.
fn lengths(times: [u64; 3], most: u64, cells: usize) -> [usize; 3] {
    let (mut sum, mut drawn) = (0u64, 0);
    times.map(|ms| {
        sum = sum.saturating_add(ms);
        let share = if most == 0 { 0.0 } else { sum as f64 / most as f64 };
        // What came before is drawn already: so nothing is lost by rounding.
        let end = ((share * cells as f64).round() as usize).min(cells).max(drawn);
        let length = end - drawn;
        drawn = end;
        length
    })
}

fn render_events(frame: &mut Frame<'_>, scene: &Scene, ink: Ink, area: Rect) {
    let room = usize::from(area.height.saturating_sub(2));
    // The curve shows rounds.
    let told: Vec<&Event> = scene.events.iter().filter(|event| event.kind != "round").collect();
    let lines = told[told.len().saturating_sub(room)..].iter().map(|event| {
        let style = match event.kind {
            "killed" => ink.of(Color::Red).add_modifier(Modifier::BOLD),
            "standing" => ink.of(Color::Yellow),
            "failover" | "agreed" | "resumed" | "returned" | "trained" => ink.of(Color::Green),
            _ => Style::new(),
        };
        let at = format!("{:>6.2} s  ", event.at_ms as f64 / 1000.0);
        Line::from(vec![Span::styled(at, ink.faint()), Span::styled(event.text.as_str(), style)])
    });
    let lines: Vec<Line<'_>> = lines.collect();
    frame.render_widget(Paragraph::new(lines).block(ink.boxed(" what happened ")), area);
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::super::scene::tests::{course, scene, status};
    use super::*;

    fn drawn(scene: &Scene, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| render(frame, scene, true)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_picture_shows_who_leads_who_is_dead_and_the_failover() {
        let mut scene = scene([None, Some(status("b", "b", 3, 41)), Some(status("c", "b", 3, 40))]);
        scene.killed(0);
        scene.says("killed", Some(0), "a is killed with SIGKILL".into()).unwrap();
        scene.failover(312);
        let picture = drawn(&scene, 80, 24);
        println!("{picture}");
        for part in ["★  b", "✗  a", "killed with SIGKILL", "failover 312 ms", "follows b"] {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
    }

    #[test]
    fn the_picture_shows_how_far_the_training_is_and_who_straggles() {
        let mut scene = scene([Some(status("a", "a", 1, 9)), Some(status("b", "a", 1, 9)), None]);
        scene.followed(course(4, "slow")).unwrap();
        scene.killed(0);
        let picture = drawn(&scene, 80, 24);
        println!("{picture}");
        for part in ["round 4/8 · accuracy 84.0 %", "coordinates, follows a", "100 %", "q is slow"]
        {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
        let row = |party: &str| {
            let begins = format!("│{party} ");
            let found = picture.lines().find(|line| line.contains(&begins));
            found.map(str::to_owned).unwrap_or_default()
        };
        let bar = |party: &str| row(party).matches('█').count();
        assert_eq!((bar("p"), bar("q")), (BAR / 4, BAR), "{picture}");
        assert!(row("q").contains("slow") && row("q").contains("400 ms"), "{picture}");
        let is_braille = |letter: char| ('\u{2801}'..='\u{28ff}').contains(&letter);
        assert!(picture.contains(is_braille), "{picture}");
    }

    #[test]
    fn parts_of_a_bar_add_up() {
        assert_eq!(lengths([0, 0, 0], 0, 10), [0, 0, 0]);
        assert_eq!(lengths([25, 50, 25], 100, 10), [3, 5, 2]);
        for times in [[1, 1, 1], [333, 333, 334], [999, 1, 0], [0, 0, 7]] {
            let most = times.iter().sum();
            assert_eq!(lengths(times, most, 24).iter().sum::<usize>(), 24, "{times:?}");
        }
    }

    #[test]
    fn the_axis_begins_below_everything() {
        assert_eq!(lowest(&[]), 80.0);
        assert_eq!(lowest(&[(1.0, 95.0)]), 80.0);
        assert_eq!(lowest(&[(1.0, 43.0), (2.0, 90.0)]), 30.0);
        assert_eq!(lowest(&[(1.0, 4.0)]), 0.0);
    }

    #[test]
    fn a_tiny_terminal_is_no_reason_to_fall_over() {
        let mut scene = scene([None, None, None]);
        for _ in 0..2 {
            for (width, height) in [(1, 1), (5, 3), (20, 8), (20, 14), (40, 20), (200, 60)] {
                drawn(&scene, width, height);
            }
            scene.followed(course(4, "late")).unwrap();
        }
    }
}
