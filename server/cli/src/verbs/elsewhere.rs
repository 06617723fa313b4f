//! karmadactl's verbs that install a control plane's parts: they are taken, and told what does that here.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

#[derive(Debug, Args)]
pub struct ElsewhereArgs {
    /// What karmadactl takes behind the verb
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// A verb of karmadactl's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Init,
    Deinit,
    Addons,
}

/// What does it here. Nothing was done.
pub(crate) async fn run(verb: Verb, args: ElsewhereArgs) -> anyhow::Result<ExitCode> {
    let what = args.arguments.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    match (verb, what.as_ref()) {
        (Verb::Init, _) => bail!(
            "`init` is Karmada's way: here `crowsnest up` starts all of a control plane on this machine; in a cluster the Helm chart brings `crowsnest serve`, and `crowsnest install --kubeconfig FILE` puts what it needs into a control plane"
        ),
        (Verb::Deinit, _) => bail!(
            "`deinit` is Karmada's way: here `crowsnest uninstall --kubeconfig FILE` takes out of a control plane what asks `crowsnest serve`, and `helm uninstall` the rest; objects and members stay"
        ),
        (Verb::Addons, "list") => bail!(
            "there are no addons to list: search, metrics, descheduler and estimators are parts of `crowsnest serve`; `crowsnest doctor` tells how they are"
        ),
        (Verb::Addons, _) => bail!(
            "there are no addons: search, metrics and the descheduler are parts of `crowsnest serve`, switched by --controllers and --metrics-adapter; beside a member `crowsnest estimator` is what estimates"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[tokio::test]
    #[case(Verb::Init, &["--crds", "x"], "`crowsnest install --kubeconfig FILE`")]
    #[case(Verb::Deinit, &["-f"], "`crowsnest uninstall --kubeconfig FILE`")]
    #[case(Verb::Addons, &["list", "-n", "karmada-system"], "there are no addons to list")]
    #[case(Verb::Addons, &["enable", "karmada-search"], "there are no addons: ")]
    async fn what_does_it_here_is_said(#[case] verb: Verb, #[case] words: &[&str], #[case] expected: &str) {
        let args = ElsewhereArgs { arguments: words.iter().map(OsString::from).collect() };
        let error = run(verb, args).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
