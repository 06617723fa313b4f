//! The registry of verbs: one entry each, with its help, its arguments and the function that runs it.

mod api_resources;
mod apply;
mod attach;
mod cordon;
mod cp;
mod describe;
mod diff;
mod elsewhere;
mod events;
mod exec;
mod explain;
pub mod get;
mod history;
mod index;
pub(crate) mod interpret;
mod join;
mod journal;
pub mod kubectl;
mod logs;
mod plan;
mod port_forward;
mod promote;
mod search;
mod taint;
mod token;
mod top;
mod unjoin;
mod version;

use std::process::ExitCode;

use clap::Subcommand;

/// Declares [`Verb`]: each entry is a variant with its arguments, and the function that runs it.
macro_rules! verbs {
    ($($(#[$attribute:meta])* $name:ident($arguments:ty) => $run:expr;)+) => {
        /// A verb with its arguments.
        #[derive(Debug, Subcommand)]
        pub enum Verb {
            $($(#[$attribute])* $name($arguments),)+
        }

        impl Verb {
            /// Runs the verb and returns the exit code of the process.
            pub async fn run(self) -> anyhow::Result<ExitCode> {
                match self {
                    $(Self::$name(arguments) => ($run)(arguments).await,)+
                }
            }
        }
    };
}

verbs! {
    /// Register a cluster that somebody else runs
    Join(join::JoinArgs) => join::run;
    /// Take a cluster out that was joined
    Unjoin(unjoin::UnjoinArgs) => unjoin::run_unjoin;
    /// Take a cluster out that its agent registered
    Unregister(unjoin::UnregisterArgs) => unjoin::run_unregister;
    /// Tokens with which clusters register themselves
    Token(token::TokenArgs) => token::run;
    /// Let a cluster take nothing new
    #[command(after_help = "Examples:\n  crowsnest cordon member1")]
    Cordon(cordon::CordonArgs) => |args| cordon::run(args, cordon::Wanted::Cordoned);
    /// Let a cordoned cluster take new workloads again
    #[command(after_help = "Examples:\n  crowsnest uncordon member1")]
    Uncordon(cordon::CordonArgs) => |args| cordon::run(args, cordon::Wanted::Uncordoned);
    /// Put taints on clusters, or take them off
    Taint(taint::TaintArgs) => taint::run;
    /// Find objects and events in all clusters
    Search(search::SearchArgs) => search::run;
    /// Show objects of all clusters, as kubectl shows those of one
    Get(get::GetArgs) => get::run;
    /// Show an object of one or several clusters with all its fields and its events
    Describe(describe::DescribeArgs) => describe::run;
    /// How an object differs from what it should be, from another cluster's or from what it was
    Diff(diff::DiffArgs) => diff::run;
    /// The versions of an object that are kept, and what changed with each
    History(history::HistoryArgs) => history::run;
    /// What happened in all clusters, the latest last
    Events(events::EventsArgs) => events::run;
    /// What pods or nodes of all clusters use
    Top(top::TopArgs) => top::run;
    /// Print the logs of pods in all clusters
    Logs(logs::LogsArgs) => logs::run;
    /// Run a command in a container of any cluster
    Exec(exec::ExecArgs) => exec::run;
    /// Take over input and output of a container of any cluster
    Attach(attach::AttachArgs) => attach::run;
    /// Copy files to and from a container of any cluster
    Cp(cp::CpArgs) => cp::run;
    /// Let ports of this machine lead to a pod of any cluster
    PortForward(port_forward::PortForwardArgs) => port_forward::run;
    /// Write objects into the control plane, and with clusters their policies
    Apply(Box<apply::ApplyArgs>) => |args: Box<_>| apply::run(*args);
    /// Take an object of a member up into the control plane
    Promote(Box<promote::PromoteArgs>) => |args: Box<_>| promote::run(*args);
    /// Why an object is in its clusters, what each policy and filter said, what it waits for
    Explain(explain::ExplainArgs) => explain::run;
    /// What moved about an object, and because of what
    Journal(journal::JournalArgs) => journal::run;
    /// What would become of the fleet if policies, overrides or objects were applied
    Plan(plan::PlanArgs) => plan::run;
    /// Check, try and edit what says how a kind is interpreted
    Interpret(interpret::InterpretArgs) => interpret::run;
    /// Show the index of text search, compare it with the cache, build it anew
    Index(index::IndexArgs) => index::run;
    /// What kinds the control plane serves, or a member
    ApiResources(api_resources::ApiResourcesArgs) => api_resources::run_resources;
    /// Which versions of groups the control plane serves, or a member
    ApiVersions(api_resources::ApiVersionsArgs) => api_resources::run_versions;
    /// Make an object in the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest create configmap settings -n shop --from-literal level=one\n\n`kubectl create --help` tells what it takes."
    )]
    Create(kubectl::KubectlArgs) => |args| kubectl::run("create", args);
    /// Delete objects of the control plane, and so what was propagated of them, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest delete configmap settings -n shop\n\n`kubectl delete --help` tells what it takes."
    )]
    Delete(kubectl::KubectlArgs) => |args| kubectl::run("delete", args);
    /// Edit an object of the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest edit deploy/web -n shop\n\n`kubectl edit --help` tells what it takes."
    )]
    Edit(kubectl::KubectlArgs) => |args| kubectl::run("edit", args);
    /// Change fields of an object of the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest patch deploy/web -n shop -p '{}'\n\n`kubectl patch --help` tells what it takes."
    )]
    Patch(kubectl::KubectlArgs) => |args| kubectl::run("patch", args);
    /// Label objects of the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest label deploy/web tier=front -n shop\n\n`kubectl label --help` tells what it takes."
    )]
    Label(kubectl::KubectlArgs) => |args| kubectl::run("label", args);
    /// Annotate objects of the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest annotate deploy/web note=hello -n shop\n\n`kubectl annotate --help` tells what it takes."
    )]
    Annotate(kubectl::KubectlArgs) => |args| kubectl::run("annotate", args);
    /// Said by karmadactl: what does it here
    #[command(hide = true)]
    Init(elsewhere::ElsewhereArgs) => |args| elsewhere::run(elsewhere::Verb::Init, args);
    /// The same
    #[command(hide = true)]
    Deinit(elsewhere::ElsewhereArgs) => |args| elsewhere::run(elsewhere::Verb::Deinit, args);
    /// The same
    #[command(hide = true)]
    Addons(elsewhere::ElsewhereArgs) => |args| elsewhere::run(elsewhere::Verb::Addons, args);
    /// Print our version, and the control plane's
    Version(version::VersionArgs) => version::run;
}
