//! Normalizes command lines written for kubectl and karmadactl: `--watch=false`, `--label_columns`, `-v 4`, `-o
//! go-template --template …`. Accepts klog's flags and the throttling flags of Karmada's components, which have no
//! effect here. Has no side effects.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// klog's flags, with true for those that take a value. They have no effect, because crowsnest always logs to standard
/// error.
const KLOG_FLAGS: [(&str, bool); 12] = [
    ("add-dir-header", false),
    ("alsologtostderr", false),
    ("log-backtrace-at", true),
    ("log-dir", true),
    ("log-file", true),
    ("log-file-max-size", true),
    ("logtostderr", false),
    ("one-output", false),
    ("skip-headers", false),
    ("skip-log-headers", false),
    ("stderrthreshold", true),
    ("vmodule", true),
];
/// Flags for request rates and concurrency of Karmada's components, besides `concurrent-…-syncs`; all take a value.
const THROTTLING_FLAGS: [&str; 11] = [
    "cluster-api-burst",
    "cluster-api-qps",
    "cluster-cache-sync-timeout",
    "kube-api-burst",
    "kube-api-qps",
    "parallelism",
    "rate-limiter-base-delay",
    "rate-limiter-bucket-size",
    "rate-limiter-max-delay",
    "rate-limiter-qps",
    "resync-period",
];
/// Commands that replace Karmada's components.
const COMPONENTS: [&str; 4] = ["serve", "up", "agent", "estimator"];
/// kubectl's flag for the template that belongs to the format in `-o`.
const TEMPLATE: &str = "template";
/// kubectl's flag that ignores missing keys in templates. Its default, `true`, is the only supported value.
const ALLOW_MISSING_KEYS: &str = "allow-missing-template-keys";
/// Output format of a `--template` without `-o`.
const DEFAULT_FORMAT: &str = "go-template";

/// A normalized command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::commands) struct NormalizedLine {
    pub(in crate::commands) words: Vec<OsString>,
    /// Notes about ignored flags.
    pub(in crate::commands) notes: Vec<String>,
}

/// Normalizes a command line. Words after `--` and arguments passed to other programs are unchanged.
pub(in crate::commands) fn normalize(root: &Command, line: Vec<OsString>) -> NormalizedLine {
    let mut normalized = NormalizedLine::default();
    let mut command = root;
    let (mut template, mut rest) = (None, None);
    let mut words = line.into_iter().peekable();
    normalized.words.extend(words.next());
    while let Some(word) = words.next() {
        let text = match word.to_str() {
            Some("--") | None => {
                rest = Some(word);
                break;
            }
            Some(text) => text.to_owned(),
        };
        if let Some(inner) = command.find_subcommand(&text) {
            command = inner;
            normalized.words.push(word);
            if command.get_arguments().any(Arg::is_trailing_var_arg_set) {
                break;
            }
            continue;
        }
        let is_level = |next: &OsString| next.to_str().is_some_and(|next| next.parse::<u8>().is_ok());
        if matches!(text.as_str(), "-v" | "--v") && words.peek().is_some_and(is_level) {
            let level = words.next().unwrap_or_default();
            normalized.words.push(format!("-v={}", level.to_string_lossy()).into());
            continue;
        }
        let Some(flag) = text.strip_prefix("--") else {
            normalized.words.push(word);
            continue;
        };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let name = name.replace('_', "-");
        let known_flag = find_flag(command, &name);
        if known_flag.is_none() && name == TEMPLATE && find_flag(command, "output").is_some() {
            template = value.map(OsString::from).or_else(|| words.next());
        } else if known_flag.is_none()
            && name == ALLOW_MISSING_KEYS
            && value.is_none_or(|value| parse_bool(value) == Some(true))
        {
            // Dropped: `true` is the default.
        } else if let Some((_, takes_value)) = KLOG_FLAGS.iter().find(|(klog, _)| *klog == name) {
            if *takes_value && value.is_none() {
                words.next();
            }
            normalized.notes.push(format!("--{name} has no effect: logs are written to standard error"));
        } else if known_flag.is_none() && COMPONENTS.contains(&command.get_name()) && is_throttling_flag(&name) {
            if value.is_none() {
                words.next();
            }
            normalized
                .notes
                .push(format!("--{name} has no effect: concurrency and request rates are not configurable"));
        } else if let (Some(value), true) = (value.and_then(parse_bool), known_flag.is_some_and(is_switch)) {
            normalized.words.extend(value.then(|| OsString::from(format!("--{name}"))));
        } else {
            normalized
                .words
                .push(value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")).into());
        }
    }
    if let Some(template) = template {
        append_template(&mut normalized.words, &template);
    }
    normalized.words.extend(rest.into_iter().chain(words));
    normalized
}

fn is_throttling_flag(name: &str) -> bool {
    THROTTLING_FLAGS.contains(&name) || (name.starts_with("concurrent-") && name.ends_with("-syncs"))
}

/// Finds a flag of a command by its long name or alias.
fn find_flag<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    command.get_arguments().find(|arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    })
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Parses a boolean as Go's `strconv.ParseBool`.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Appends the template to the output format: `-o go-template` becomes `-o go-template=TEMPLATE`.
fn append_template(words: &mut Vec<OsString>, template: &OsString) {
    let template = template.to_string_lossy();
    for index in 0..words.len() {
        let text = words[index].to_string_lossy().into_owned();
        let (flag, format) = match text.as_str() {
            "-o" | "--output" => ("", words.get(index + 1).map(|next| next.to_string_lossy().into_owned())),
            text if text.starts_with("--output=") => ("--output=", text.strip_prefix("--output=").map(str::to_owned)),
            text if text.starts_with("-o") => ("-o", text.get(2..).map(|rest| rest.trim_start_matches('=').to_owned())),
            _ => continue,
        };
        let Some(format) = format.filter(|format| !format.contains('=')) else { return };
        match flag {
            "" => words[index + 1] = format!("{format}={template}").into(),
            flag => words[index] = format!("{flag}{format}={template}").into(),
        }
        return;
    }
    words.push("-o".into());
    words.push(format!("{DEFAULT_FORMAT}={template}").into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    use crate::commands::Cli;

    /// karmadactl's flags, from its reference documentation.
    const KARMADACTL: &str = include_str!("normalize/karmadactl.txt");

    fn normalize_line(line: &str) -> NormalizedLine {
        super::normalize(&Cli::command(), line.split_whitespace().map(OsString::from).collect())
    }

    #[rstest::rstest]
    #[case("x get pods --watch=false --no-headers=true", "x get pods --no-headers")]
    #[case("x get pods --label_columns app", "x get pods --label-columns app")]
    #[case("x get pods --show-labels=maybe", "x get pods --show-labels=maybe")]
    #[case("x get pods -v 4 web", "x get pods -v=4 web")]
    #[case("x get pods -o go-template --template {{.a}}", "x get pods -o go-template={{.a}}")]
    #[case("x get --template={.a} pods --output=jsonpath", "x get pods --output=jsonpath={.a}")]
    #[case("x get pods -ojsonpath --template {.a}", "x get pods -ojsonpath={.a}")]
    #[case("x get pods --template {{.a}}", "x get pods -o go-template={{.a}}")]
    #[case("x get --template {{.a}} -- pods", "x get -o go-template={{.a}} -- pods")]
    #[case("x logs --template {{.pod}}", "x logs --template {{.pod}}")]
    #[case("x get pods --allow-missing-template-keys=true", "x get pods")]
    #[case("x exec web -- ls --all=true -v 3", "x exec web -- ls --all=true -v 3")]
    #[case("x create secret generic db --save_config=true", "x create secret generic db --save_config=true")]
    #[case("x promote deploy/web --auto-create-policy=false", "x promote deploy/web --auto-create-policy=false")]
    #[case("x token create --print-register-command=true", "x token create --print-register-command")]
    fn flags_are_normalized(#[case] line: &str, #[case] expected: &str) {
        let words = normalize_line(line).words.into_iter().map(|word| word.to_string_lossy().into_owned());
        assert_eq!(words.collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn klog_flags_are_ignored_with_a_note() {
        let line = normalize_line("x get --logtostderr --vmodule a=2 pods");
        assert_eq!(line.words, ["x", "get", "pods"]);
        assert_eq!(line.notes.len(), 2);
        assert_eq!(line.notes[0], "--logtostderr has no effect: logs are written to standard error");
    }

    #[rstest::rstest]
    #[case("x serve --kube-api-qps 40 --concurrent-work-syncs=5 --roles all", "x serve --roles all", 2)]
    #[case("x estimator --parallelism=16", "x estimator", 1)]
    #[case::other_command("x get pods --kube-api-qps=40", "x get pods --kube-api-qps=40", 0)]
    #[case::supported_flag(
        "x serve --enable-cluster-resource-modeling=false",
        "x serve --enable-cluster-resource-modeling=false",
        0
    )]
    fn throttling_flags_are_ignored_with_a_note(#[case] line: &str, #[case] expected: &str, #[case] notes: usize) {
        let normalized = normalize_line(line);
        let words: Vec<String> = normalized.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!((words.join(" ").as_str(), normalized.notes.len()), (expected, notes));
    }

    /// Every command and flag of karmadactl is accepted, with a value if it has one there.
    #[test]
    fn karmadactl_flags_are_accepted() {
        let mut root = Cli::command();
        root.build();
        let mut unknown = Vec::new();
        for line in KARMADACTL.lines().filter(|line| !line.starts_with('#')) {
            let (verbs, flags) = line.split_once(':').unwrap();
            let mut command = Some(&root);
            for verb in verbs.split(' ') {
                command = command.and_then(|command| match command.get_arguments().any(Arg::is_trailing_var_arg_set) {
                    true => Some(command),
                    false => command.find_subcommand(verb),
                });
            }
            let Some(command) = command else {
                unknown.push(verbs.to_owned());
                continue;
            };
            if command.get_arguments().any(Arg::is_trailing_var_arg_set) {
                continue;
            }
            unknown.extend(
                flags.split_whitespace().filter(|flag| !accepts_flag(command, flag)).map(|f| format!("{verbs} {f}")),
            );
        }
        assert!(unknown.is_empty(), "{unknown:#?}");
    }

    /// True if the command accepts a flag of `karmadactl.txt`: `-n--namespace=` takes a value, `--dry-run?=` an
    /// optional one, `-A--all-namespaces` none.
    fn accepts_flag(command: &Command, flag: &str) -> bool {
        let (flag, takes_value) = match flag.strip_suffix('=') {
            Some(flag) => (flag.trim_end_matches('?'), true),
            None => (flag, false),
        };
        let (short, long) = flag.split_once("--").unwrap();
        if [TEMPLATE, ALLOW_MISSING_KEYS].contains(&long) && find_flag(command, "output").is_some() {
            return true;
        }
        find_flag(command, long).is_some_and(|arg| {
            let shorts = arg.get_short().into_iter().chain(arg.get_all_short_aliases().into_iter().flatten());
            let has_short = short.is_empty() || shorts.into_iter().any(|letter| short == format!("-{letter}"));
            // A switch of karmadactl may be a flag with an optional value here.
            let min_values = arg.get_num_args().map_or(1, |range| range.min_values());
            has_short && (arg.get_action().takes_values() == takes_value || !takes_value && min_values == 0)
        })
    }
}
