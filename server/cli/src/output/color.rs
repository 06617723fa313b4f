//! Colours of the output: used in terminals unless `NO_COLOR` is set or the terminal is `dumb`.

use clap::Args;

use crate::pager;

pub(crate) const RED: u8 = 31;
pub(crate) const GREEN: u8 = 32;
pub(crate) const YELLOW: u8 = 33;
pub(crate) const CYAN: u8 = 36;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ColorArgs {
    /// Colour the output; auto: in a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    color: Color,
}

impl ColorArgs {
    /// True if output is coloured.
    pub(crate) fn is_enabled(self) -> bool {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => !no_color && !is_dumb && pager::is_terminal_output(),
        }
    }
}

/// Wraps a text in the escape sequences of a colour.
pub(crate) fn paint(text: &str, color: Option<u8>) -> String {
    match color {
        Some(color) if !text.is_empty() => format!("\x1b[{color}m{text}\x1b[0m"),
        _ => text.to_owned(),
    }
}

/// The colour of a cell below a status column's header; `None` for other columns.
pub(crate) fn cell_color(header: &str, cell: &str) -> Option<u8> {
    match header {
        "STATUS" | "PHASE" | "TYPE" | "HEALTH" => state_color(cell),
        // Yellow if not all containers are ready.
        "READY" => match cell.split_once('/') {
            Some((ready, all)) if ready != all => Some(YELLOW),
            Some(_) => None,
            None => state_color(cell),
        },
        _ => None,
    }
}

/// The colour of a state: green if good, red if failed, yellow if pending or unknown; `None` for others.
fn state_color(state: &str) -> Option<u8> {
    let failed =
        ["Error", "Failed", "BackOff", "ImagePull", "Invalid", "OOMKilled", "Evicted", "NotReady", "Lost", "Unhealthy"];
    let pending =
        ["Pending", "Terminating", "Unknown", "ContainerCreating", "Init:", "PodInitializing", "Warning", "Degraded"];
    match state {
        "Running" | "Ready" | "Active" | "Bound" | "Succeeded" | "Completed" | "Complete" | "Available" | "Healthy"
        | "True" => Some(GREEN),
        "False" => Some(RED),
        state if failed.iter().any(|word| state.contains(word)) => Some(RED),
        state if pending.iter().any(|word| state.contains(word)) => Some(YELLOW),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("STATUS", "Running", Some(GREEN))]
    #[case("STATUS", "CrashLoopBackOff", Some(RED))]
    #[case("STATUS", "Ready,SchedulingDisabled", None)]
    #[case("STATUS", "Init:0/1", Some(YELLOW))]
    #[case("STATUS", "<none>", None)]
    #[case("READY", "0/1", Some(YELLOW))]
    #[case("READY", "1/1", None)]
    #[case("TYPE", "Warning", Some(YELLOW))]
    #[case("NAME", "Running", None)]
    fn cell_colors_follow_the_state(#[case] header: &str, #[case] cell: &str, #[case] expected: Option<u8>) {
        assert_eq!(cell_color(header, cell), expected);
    }
}
