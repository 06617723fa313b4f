//! Verbs that concern the control plane only, as in karmadactl: they run kubectl against it with the given arguments.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;

use crate::connection::local_kubeconfig;

const KUBECTL: &str = "kubectl";
/// karmadactl's name of kubectl's `--context`.
const CONTEXT: &str = "--karmada-context";

#[derive(Debug, Args)]
pub struct KubectlArgs {
    /// kubectl's arguments; --karmada-context means --context
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Runs kubectl against the control plane and returns its exit code.
pub(crate) async fn run(verb: &str, args: KubectlArgs) -> anyhow::Result<ExitCode> {
    let arguments = translate_arguments(args.arguments);
    let mut command = tokio::process::Command::new(KUBECTL);
    command.arg(verb).args(&arguments);
    if !has_kubeconfig_flag(&arguments)
        && std::env::var_os("KUBECONFIG").is_none()
        && let Some(kubeconfig) = local_kubeconfig()
    {
        command.env("KUBECONFIG", kubeconfig);
    }
    let status = command.status().await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            anyhow!("`{verb}` runs kubectl, which is not in $PATH; install it, or use `crowsnest apply -f FILE`")
        }
        _ => anyhow!(error).context("cannot run kubectl"),
    })?;
    // Shells report a signal as 128 plus its number.
    let code =
        status.code().or_else(|| std::os::unix::process::ExitStatusExt::signal(&status).map(|signal| 128 + signal));
    Ok(ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1)))
}

/// Runs kubectl and returns its standard output.
pub(crate) async fn capture_output(arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = tokio::process::Command::new(KUBECTL).args(arguments).output().await;
    let output = output.with_context(|| format!("cannot run `kubectl {}`", arguments.join(" ")))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(anyhow!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Translates karmadactl's flags to kubectl's.
pub fn translate_arguments(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut is_kubectl_argument = true;
    let translate = |argument: OsString| {
        // Arguments after `--` belong to the remote command.
        is_kubectl_argument &= argument != "--";
        let rest = argument.to_str().filter(|_| is_kubectl_argument).and_then(|text| text.strip_prefix(CONTEXT));
        let context = rest.filter(|rest| rest.is_empty() || rest.starts_with('='));
        context.map(|rest| OsString::from(format!("--context{rest}"))).unwrap_or(argument)
    };
    arguments.into_iter().map(translate).collect()
}

fn has_kubeconfig_flag(arguments: &[OsString]) -> bool {
    arguments.iter().any(|argument| {
        let text = argument.to_string_lossy();
        text == "--kubeconfig" || text.starts_with("--kubeconfig=")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("deployment web --karmada-context cp", "deployment web --context cp")]
    #[case("web --karmada-context=cp -- x --karmada-context", "web --context=cp -- x --karmada-context")]
    #[case("--karmada-contexts a", "--karmada-contexts a")]
    fn karmadactl_flags_become_kubectl_flags(#[case] line: &str, #[case] expected: &str) {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(translate_arguments(words(line)), words(expected));
        assert!(!has_kubeconfig_flag(&words(line)) && has_kubeconfig_flag(&words("a --kubeconfig=x")));
    }
}
