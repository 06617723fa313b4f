//! Shell completion, including live names of objects: for the scripts that `crowsnest completion` prints, and for
//! kubectl plugins by the program `kubectl_complete-crowsnest`. Live names are omitted if the server does not respond
//! in time.

mod live;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{Arg, Args, Command, CommandFactory, ValueEnum};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, complete};
use clap_complete::env::Shells;
use crowsnest_cli::examples;

use crate::commands::Cli;

/// Environment variable by which a completion script requests candidates.
const COMPLETION_VARIABLE: &str = "COMPLETE";
/// Prefix of the programs that kubectl runs to complete a plugin.
const KUBECTL_COMPLETION_PREFIX: &str = "kubectl_complete-";
/// Directive for kubectl: no file names.
const NO_FILES: &str = ":4";

/// Program names and the commands that users see.
const PLUGIN_COMMANDS: [(&str, &str); 3] =
    [("kubectl-crowsnest", "kubectl crowsnest"), ("kubectl-karmada", "kubectl karmada"), ("karmadactl", "karmadactl")];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
    Elvish,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "source <(crowsnest completion bash)                      in ~/.bashrc",
    "source <(crowsnest completion zsh)                       in ~/.zshrc",
    "crowsnest completion fish | source                       in ~/.config/fish/config.fish",
    "crowsnest completion powershell | Out-String | Invoke-Expression",
    "crowsnest completion --plugin ~/.local/bin                `kubectl crowsnest` and `kubectl karmada`, with completion",
])]
pub(crate) struct CompletionArgs {
    #[arg(value_enum, required_unless_present = "plugin")]
    shell: Option<Shell>,
    /// Link the kubectl plugins and their completion programs into this folder of $PATH
    #[arg(long, value_name = "FOLDER", conflicts_with = "shell")]
    plugin: Option<PathBuf>,
}

/// Names of the plugins and their completion programs.
const LINKS: [&str; 4] =
    ["kubectl-crowsnest", "kubectl-karmada", "kubectl_complete-crowsnest", "kubectl_complete-karmada"];

pub(crate) fn run(args: &CompletionArgs) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.plugin {
        let program = std::env::current_exe().context("cannot find this program")?;
        link_plugins(&program, folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let shell = args.shell.as_ref().context("specify a shell, or --plugin FOLDER")?;
    let program = std::env::args_os().next().unwrap_or_default();
    // A program started by its path is completed by that path.
    let is_path = Path::new(&program).components().count() > 1;
    let completer = if is_path { std::env::current_exe().context("cannot find this program")? } else { program.into() };
    let name = shell.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let shells = Shells::builtins();
    let shell = shells.completer(&name).ok_or_else(|| anyhow!("unsupported shell {name}"))?;
    let mut script = Vec::new();
    shell.write_registration(
        COMPLETION_VARIABLE,
        "crowsnest",
        "crowsnest",
        &completer.to_string_lossy(),
        &mut script,
    )?;
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Existing links are replaced; files are not.
fn link_plugins(program: &Path, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for name in LINKS {
        let link = folder.join(name);
        match link.symlink_metadata() {
            Ok(found) if found.is_symlink() => {
                std::fs::remove_file(&link).with_context(|| format!("cannot replace {}", link.display()))?;
            }
            Ok(_) => bail!("{} exists and is not a link; move it away", link.display()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", link.display())),
        }
        std::os::unix::fs::symlink(program, &link).with_context(|| format!("cannot link {}", link.display()))?;
        writeln!(std::io::stdout(), "{}", link.display())?;
    }
    Ok(())
}

/// The command tree, named as the program was called.
pub(crate) fn command() -> Command {
    match plugin_command_name(&std::env::args_os().next().unwrap_or_default()) {
        Some(name) => rename_command(Cli::command().bin_name(name), name),
        None => Cli::command(),
    }
}

/// The command that users type to run the program, if it is a plugin.
fn plugin_command_name(program: &OsStr) -> Option<&'static str> {
    let name = Path::new(program).file_stem()?.to_string_lossy();
    PLUGIN_COMMANDS.iter().find(|(file, _)| *file == name).map(|(_, command)| *command)
}

/// Renames the command in usage and examples.
fn rename_command(command: Command, name: &str) -> Command {
    let help = command.get_after_help().map(|text| text.to_string().replace("  crowsnest ", &format!("  {name} ")));
    let command = match help {
        Some(help) => command.after_help(help),
        None => command,
    };
    command.mut_subcommands(|command| rename_command(command, name))
}

/// Handles a completion request of a shell or kubectl; false if the command line is not such a request.
pub(crate) fn handle_request() -> anyhow::Result<bool> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let program = words.first().and_then(|program| Path::new(program).file_stem()).unwrap_or_default();
    let is_kubectl_request = program.to_string_lossy().starts_with(KUBECTL_COMPLETION_PREFIX);
    if is_kubectl_request {
        words[0] = "crowsnest".into();
        let last = words.len() - 1;
        let candidates =
            complete(&mut live_command(), words, last, None).context("cannot complete the command line")?;
        let mut out = std::io::stdout().lock();
        for candidate in candidates.iter().filter(|candidate| !candidate.is_hide_set()) {
            let help = candidate.get_help().map(|help| help.to_string().lines().next().unwrap_or_default().to_owned());
            match help.filter(|help| !help.is_empty()) {
                Some(help) => writeln!(out, "{}\t{help}", candidate.get_value().to_string_lossy())?,
                None => writeln!(out, "{}", candidate.get_value().to_string_lossy())?,
            }
        }
        writeln!(out, "{NO_FILES}")?;
        return Ok(true);
    }
    let folder = std::env::current_dir().ok();
    let result =
        CompleteEnv::with_factory(live_command).var(COMPLETION_VARIABLE).try_complete(words, folder.as_deref());
    result.map_err(|error| anyhow!("{error}"))
}

fn live_command() -> Command {
    add_live_completion(Cli::command())
}

/// Adds live completion to arguments that name objects.
fn add_live_completion(command: Command) -> Command {
    let command_name = command.get_name().to_owned();
    let command = command.mut_args(|arg| add_completer(arg, &command_name));
    command.mut_subcommands(add_live_completion)
}

fn add_completer(arg: Arg, command: &str) -> Arg {
    let completer = match (arg.get_id().as_str(), command) {
        ("cluster" | "clusters" | "with", _) | ("name", "cordon" | "uncordon" | "unjoin" | "unregister") => {
            ArgValueCompleter::new(live::clusters)
        }
        ("namespace", "register" | "unregister" | "agent") => return arg,
        ("namespace", _) => ArgValueCompleter::new(live::namespaces),
        ("query", "search") => ArgValueCompleter::new(live::query),
        ("query", "logs" | "events") => ArgValueCompleter::new(live::query_or_object),
        ("object" | "kind", _) => ArgValueCompleter::new(live::objects),
        ("verb", "who-can") => ArgValueCompleter::new(live::rbac_verbs),
        ("target", "who-can") => ArgValueCompleter::new(live::targets),
        ("name", "get") => ArgValueCompleter::new(live::names),
        ("pod", "exec" | "attach" | "port-forward") | ("name", "pods") => ArgValueCompleter::new(live::pods),
        ("name", "nodes") => ArgValueCompleter::new(live::nodes),
        ("about", "events") => ArgValueCompleter::new(live::objects),
        ("context", _) => ArgValueCompleter::new(live::contexts),
        ("arguments", "taint") => ArgValueCompleter::new(live::taint_arguments),
        ("arguments", _) => ArgValueCompleter::new(live::kubectl_arguments),
        _ => return arg,
    };
    arg.add(completer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("kubectl-crowsnest", Some("kubectl crowsnest"))]
    #[case("/usr/local/bin/kubectl-karmada", Some("kubectl karmada"))]
    #[case("/opt/crowsnest", None)]
    fn program_names_become_commands(#[case] program: &str, #[case] expected: Option<&str>) {
        assert_eq!(plugin_command_name(OsStr::new(program)), expected);
    }

    #[test]
    fn plugins_are_linked() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("bin");
        for program in ["/opt/old/crowsnest", "/opt/crowsnest"] {
            link_plugins(Path::new(program), &folder).unwrap();
        }
        let plugin = folder.join("kubectl_complete-karmada");
        assert_eq!(std::fs::read_link(&plugin).unwrap(), Path::new("/opt/crowsnest"));
        std::fs::remove_file(&plugin).unwrap();
        std::fs::write(&plugin, "").unwrap();
        let error = link_plugins(Path::new("/opt/crowsnest"), &folder).unwrap_err().to_string();
        assert!(error.contains("exists and is not a link"), "{error}");
    }

    #[test]
    fn usage_and_examples_use_the_command_name() {
        let mut command = rename_command(Cli::command().bin_name("kubectl crowsnest"), "kubectl crowsnest");
        command.build();
        let search = command.find_subcommand_mut("search").unwrap().render_help().to_string();
        assert!(search.contains("Usage: kubectl crowsnest search"), "{search}");
        assert!(search.contains("\n  kubectl crowsnest search image:nginx"), "{search}");
    }

    #[test]
    fn static_candidates_need_no_server() {
        let candidates = |words: &[&str]| -> Vec<String> {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let last = words.len() - 1;
            let candidates = complete(&mut live_command(), words, last, None).unwrap();
            candidates.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(candidates(&["crowsnest", "port"]), ["port-forward"]);
        assert_eq!(candidates(&["crowsnest", "completion", "z"]), ["zsh"]);
        assert_eq!(candidates(&["crowsnest", "who-can", "im"]), ["impersonate"]);
        assert!(candidates(&["crowsnest", "search", "--fail"]).contains(&"--fail-on-empty".to_owned()));
    }

    /// Splits a line as a shell does; text after three spaces, a pipe or the next command is for the reader.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote, mut blanks) = (Vec::new(), None::<String>, None, 0);
        for letter in line.chars() {
            match (quote, letter) {
                (None, '\'' | '"') => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (Some(own), letter) if own == letter => quote = None,
                (None, '|' | ';') => break,
                (None, ' ') => {
                    words.extend(word.take());
                    blanks += 1;
                    if blanks == 3 {
                        break;
                    }
                    continue;
                }
                (_, letter) => word.get_or_insert_default().push(letter),
            }
            blanks = 0;
        }
        words.into_iter().chain(word).collect()
    }

    fn assert_parses(line: &str) {
        let read = Cli::command().try_get_matches_from(words(line));
        assert!(read.is_ok(), "{line}: {:?} {}", words(line), read.map(drop).unwrap_err());
    }

    #[test]
    fn examples_are_parsed() {
        let mut command = Cli::command();
        command.build();
        let mut all = vec![command];
        while let Some(command) = all.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.lines().map(str::trim_start).filter(|line| line.starts_with("crowsnest "));
            examples.filter(|line| !line.contains('…')).for_each(assert_parses);
            all.extend(command.get_subcommands().filter(|sub| sub.get_name() != "help").cloned());
        }
    }

    #[rstest::rstest]
    #[case::access(include_str!("../../../../docs/ACCESS.md"), 13)]
    #[case::authorization(include_str!("../../../../docs/AUTHORIZATION.md"), 1)]
    #[case::cli(include_str!("../../../../docs/CLI.md"), 30)]
    #[case::explain(include_str!("../../../../docs/EXPLAIN.md"), 1)]
    #[case::journal(include_str!("../../../../docs/JOURNAL.md"), 1)]
    #[case::logs(include_str!("../../../../docs/LOGS.md"), 4)]
    #[case::mcp(include_str!("../../../../docs/MCP.md"), 1)]
    #[case::paths(include_str!("../../../../docs/PATHS.md"), 12)]
    #[case::proxies(include_str!("../../../../docs/PROXIES.md"), 5)]
    #[case::query(include_str!("../../../../docs/QUERY.md"), 1)]
    #[case::search_api(include_str!("../../../../docs/SEARCH-API.md"), 1)]
    fn documented_examples_are_parsed(#[case] document: &str, #[case] min_count: usize) {
        // A command that continues on the next line is one command.
        let document = document.replace("\\\n  ", "");
        let examples: Vec<&str> =
            document.lines().map(str::trim_start).filter(|line| line.starts_with("crowsnest ")).collect();
        assert!(examples.len() >= min_count, "{examples:?}");
        examples.into_iter().filter(|line| !line.contains('…')).for_each(assert_parses);
    }

    #[test]
    fn commands_have_examples() {
        let mut command = Cli::command();
        command.build();
        let own = ["help", "sim", "apiserver"];
        for sub in command.get_subcommands_mut().filter(|sub| !own.contains(&sub.get_name()) && !sub.is_hide_set()) {
            let name = sub.get_name().to_owned();
            let help = sub.render_help().to_string();
            assert!(help.contains(&format!("  crowsnest {name}")), "{name} has no example of itself:\n{help}");
        }
    }
}
