//! Parses the flags of a command in tests.

/// Parses flags that are separated by white space. Errors are returned as they are printed.
pub(crate) fn parse_args<A: clap::Args>(line: &str) -> Result<A, String> {
    let command = A::augment_args(clap::Command::new("crowsnest").no_binary_name(true));
    let matches = command.try_get_matches_from(line.split_whitespace()).map_err(|error| error.to_string())?;
    A::from_arg_matches(&matches).map_err(|error| error.to_string())
}
