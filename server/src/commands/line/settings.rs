//! Settings of a command in a YAML file with flag names as keys. The command line and the environment take precedence;
//! unknown keys are rejected. Values are parsed by the flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

/// The flag that names the file.
pub(in crate::commands) const CONFIG_FLAG: &str = "config";
/// Flags that a file cannot set.
const EXCLUDED_FLAGS: [&str; 4] = [CONFIG_FLAG, "help", "verbose", "version"];

/// Arguments that the file adds to a command line; empty if no file is named. Required flags may be in the file, so
/// only the combination is validated.
pub(in crate::commands) fn read_arguments(command: &Command, line: &[OsString]) -> Result<Vec<OsString>, clap::Error> {
    let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(line) else { return Ok(Vec::new()) };
    let Some((name, sub_matches)) = matches.subcommand() else { return Ok(Vec::new()) };
    let path = sub_matches.try_get_one::<PathBuf>(CONFIG_FLAG).ok().flatten();
    let (Some(path), Some(command)) = (path, command.find_subcommand(name)) else { return Ok(Vec::new()) };
    let to_error = |reason: String| {
        let text = format!("--{CONFIG_FLAG} {}: {reason}\n", path.display());
        clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(command)
    };
    let text = std::fs::read_to_string(path).map_err(|error| to_error(error.to_string()))?;
    file_arguments(command, sub_matches, &text).map_err(to_error)
}

fn file_arguments(command: &Command, matches: &ArgMatches, text: &str) -> Result<Vec<OsString>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let settings: Option<BTreeMap<String, Value>> =
        serde_saphyr::from_str(text).map_err(|error| format!("expected a mapping of flags to values: {error}"))?;
    let mut words = Vec::new();
    for (key, value) in settings.unwrap_or_default() {
        let flag = command.get_arguments().find(|arg| arg.get_long() == Some(key.as_str()));
        let Some(flag) = flag.filter(|_| !EXCLUDED_FLAGS.contains(&key.as_str())) else {
            return Err(format!("unknown key {key:?}: keys must be flag names without --"));
        };
        let source = matches.value_source(flag.get_id().as_str());
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            words.extend(flag_arguments(flag, &key, &value)?.into_iter().map(OsString::from));
        }
    }
    Ok(words)
}

fn flag_arguments(flag: &Arg, key: &str, value: &Value) -> Result<Vec<String>, String> {
    if !flag.get_action().takes_values() {
        return match value {
            Value::Bool(true) => Ok(vec![format!("--{key}")]),
            Value::Bool(false) | Value::Null => Ok(Vec::new()),
            _ => Err(format!("{key} must be true or false")),
        };
    }
    let is_repeatable = matches!(flag.get_action(), ArgAction::Append) && flag.get_value_delimiter().is_none();
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(|value| format_scalar(key, value)).collect::<Result<_, _>>()?;
            match is_repeatable {
                true => Ok(values.into_iter().map(|value| format!("--{key}={value}")).collect()),
                false => {
                    let delimiter = flag.get_value_delimiter().unwrap_or(',').to_string();
                    Ok(vec![format!("--{key}={}", values.join(&delimiter))])
                }
            }
        }
        value => Ok(vec![format!("--{key}={}", format_scalar(key, value)?)]),
    }
}

fn format_scalar(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        _ => Err(format!("{key} must be a value or a list of values")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn command() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name);
        Command::new("serve").args([
            flag("config"),
            flag("listen"),
            flag("on").action(ArgAction::SetTrue),
            flag("roles").action(ArgAction::Append).value_delimiter(','),
            flag("pair").action(ArgAction::Append),
            flag("files").action(ArgAction::Append).value_delimiter(';'),
        ])
    }

    #[rstest]
    #[case("serve --listen a", "key: b", Ok("--key=b"))]
    #[case::flags_only_in_the_file("serve", "must: b\nkey: c\nlisten: d", Ok("--key=c --listen=d --must=b"))]
    #[case::invalid_command_line("serve --no-such-flag", "key: b", Ok(""))]
    #[case("serve", "kee: b", Err("unknown key \"kee\""))]
    fn line_and_file_are_validated_together(
        #[case] line: &str,
        #[case] text: &str,
        #[case] expected: Result<&str, &str>,
    ) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let flags = [
            Arg::new("config").long("config").value_parser(clap::value_parser!(PathBuf)),
            Arg::new("listen").long("listen").requires("key"),
            Arg::new("key").long("key").requires("listen"),
            Arg::new("must").long("must"),
        ];
        let command = Command::new("x").subcommand(Command::new("serve").args(flags));
        let mut words: Vec<OsString> = ["x"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
        words.extend(["--config".into(), file.path().into()]);
        match (read_arguments(&command, &words), expected) {
            (Ok(words), Ok(expected)) => {
                let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
                assert_eq!(words.join(" "), expected);
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (words, _) => panic!("{words:?}"),
        }
    }

    #[rstest]
    #[case(
        "listen: 0.0.0.0:1\nroles: [a, b]\non: true\npair: [\"x,y\", z]",
        "",
        Ok("--listen=0.0.0.0:1 --on --pair=x,y --pair=z --roles=a,b")
    )]
    #[case("listen: 7\non: false", "", Ok("--listen=7"))]
    #[case("", "", Ok(""))]
    #[case::value_delimiter("files: [\"a,b\", \"c,d\"]", "", Ok("--files=a,b;c,d"))]
    #[case::command_line_takes_precedence("listen: a\nroles: b", "--listen c", Ok("--roles=b"))]
    #[case("lisen: a", "", Err("unknown key \"lisen\""))]
    #[case::nested_config_file("config: b", "", Err("unknown key \"config\""))]
    #[case("on: maybe", "", Err("on must be true or false"))]
    #[case("listen: {host: a}", "", Err("listen must be a value or a list of values"))]
    #[case("- listen", "", Err("expected a mapping of flags"))]
    fn files_set_flags(#[case] text: &str, #[case] arguments: &str, #[case] expected: Result<&str, &str>) {
        let line = ["serve"].into_iter().chain(arguments.split_whitespace());
        let matches = command().try_get_matches_from(line).unwrap();
        let words = file_arguments(&command(), &matches, text);
        match (words, expected) {
            (Ok(words), Ok(expected)) => {
                let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
                assert_eq!(words.join(" "), expected);
            }
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (words, _) => panic!("{words:?}"),
        }
    }
}
