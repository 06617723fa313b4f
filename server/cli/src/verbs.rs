//! The registry of verbs: one entry each, with its help, its arguments and the function that runs it.

mod api_resources;
mod apply;
mod attach;
mod blast_radius;
mod can;
mod cordon;
mod cp;
mod describe;
mod diff;
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
mod mcp;
mod path;
mod plan;
mod port_forward;
mod promote;
mod search;
mod taint;
mod token;
mod top;
mod unjoin;
mod unsupported;
mod version;
mod who_can;

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
    /// Join a cluster that is managed elsewhere
    Join(join::JoinArgs) => join::run;
    /// Remove a joined cluster from the control plane
    Unjoin(unjoin::UnjoinArgs) => unjoin::run_unjoin;
    /// Remove a cluster that its agent registered
    Unregister(unjoin::UnregisterArgs) => unjoin::run_unregister;
    /// Manage the bootstrap tokens that clusters register with
    Token(token::TokenArgs) => token::run;
    /// Mark a cluster as unschedulable
    #[command(after_help = examples!["crowsnest cordon member1"])]
    Cordon(cordon::CordonArgs) => |args| cordon::run(args, cordon::SchedulingState::Cordoned);
    /// Mark a cluster as schedulable
    #[command(after_help = examples!["crowsnest uncordon member1"])]
    Uncordon(cordon::CordonArgs) => |args| cordon::run(args, cordon::SchedulingState::Uncordoned);
    /// Add taints to clusters, or remove them
    Taint(taint::TaintArgs) => taint::run;
    /// Find objects and events in all clusters
    Search(search::SearchArgs) => search::run;
    /// Display objects of all clusters, as kubectl displays those of one cluster
    Get(get::GetArgs) => get::run;
    /// Show the details of an object and its events, in one or several clusters
    Describe(describe::DescribeArgs) => describe::run;
    /// Compare an object with its desired state, another cluster's object or a previous revision
    Diff(diff::DiffArgs) => diff::run;
    /// List the revisions of an object and what changed in each
    History(history::HistoryArgs) => history::run;
    /// List events of all clusters, the latest last
    Events(events::EventsArgs) => events::run;
    /// Show the resource usage of pods or nodes in all clusters
    Top(top::TopArgs) => top::run;
    /// Print the logs of pods in all clusters
    Logs(logs::LogsArgs) => logs::run;
    /// Run a command in a container of any cluster
    Exec(exec::ExecArgs) => exec::run;
    /// Attach to a running container of any cluster
    Attach(attach::AttachArgs) => attach::run;
    /// Copy files to and from a container of any cluster
    Cp(cp::CpArgs) => cp::run;
    /// Forward local ports to a pod of any cluster
    PortForward(port_forward::PortForwardArgs) => port_forward::run;
    /// Apply manifests to the control plane, optionally with policies for the named clusters
    Apply(Box<apply::ApplyArgs>) => |args: Box<_>| apply::run(*args);
    /// Promote an object of a member cluster into the control plane
    Promote(Box<promote::PromoteArgs>) => |args: Box<_>| promote::run(*args);
    /// Explain why an object is in its clusters: policies, filters, scores and pending work
    Explain(explain::ExplainArgs) => explain::run;
    /// Show what changed an object's placement or members, and why
    Journal(journal::JournalArgs) => journal::run;
    /// Find the paths between objects that match a pattern, in all clusters
    Path(path::PathArgs) => path::run;
    /// Show the objects that depend on an object, directly and transitively
    BlastRadius(blast_radius::BlastRadiusArgs) => blast_radius::run;
    /// List who may perform an action in each cluster, with the binding, role and rule
    WhoCan(who_can::WhoCanArgs) => who_can::run;
    /// List what a user, group or service account may do in each cluster
    Can(can::CanArgs) => can::run;
    /// Preview the effect of policies, overrides or objects on the fleet before they are applied
    Plan(plan::PlanArgs) => plan::run;
    /// Check, run and edit resource interpreter customizations
    Interpret(interpret::InterpretArgs) => interpret::run;
    /// Serve the fleet to an assistant over standard input and output (Model Context Protocol)
    Mcp(mcp::McpArgs) => mcp::run;
    /// Show, verify and rebuild the full-text search index
    Index(index::IndexArgs) => index::run;
    /// List the API resources of the control plane or a member
    ApiResources(api_resources::ApiResourcesArgs) => api_resources::run_resources;
    /// List the API versions of the control plane or a member
    ApiVersions(api_resources::ApiVersionsArgs) => api_resources::run_versions;
    /// Create an object in the control plane (runs kubectl)
    #[command(after_help = examples![
        "crowsnest create configmap settings -n shop --from-literal level=one";
        "`kubectl create --help` lists all flags."
    ])]
    Create(kubectl::KubectlArgs) => |args| kubectl::run("create", args);
    /// Delete objects of the control plane and their propagated copies (runs kubectl)
    #[command(after_help = examples![
        "crowsnest delete configmap settings -n shop";
        "`kubectl delete --help` lists all flags."
    ])]
    Delete(kubectl::KubectlArgs) => |args| kubectl::run("delete", args);
    /// Edit an object of the control plane (runs kubectl)
    #[command(after_help = examples![
        "crowsnest edit deploy/web -n shop";
        "`kubectl edit --help` lists all flags."
    ])]
    Edit(kubectl::KubectlArgs) => |args| kubectl::run("edit", args);
    /// Update fields of an object of the control plane (runs kubectl)
    #[command(after_help = examples![
        "crowsnest patch deploy/web -n shop -p '{}'";
        "`kubectl patch --help` lists all flags."
    ])]
    Patch(kubectl::KubectlArgs) => |args| kubectl::run("patch", args);
    /// Update the labels of objects of the control plane (runs kubectl)
    #[command(after_help = examples![
        "crowsnest label deploy/web tier=front -n shop";
        "`kubectl label --help` lists all flags."
    ])]
    Label(kubectl::KubectlArgs) => |args| kubectl::run("label", args);
    /// Update the annotations of objects of the control plane (runs kubectl)
    #[command(after_help = examples![
        "crowsnest annotate deploy/web note=hello -n shop";
        "`kubectl annotate --help` lists all flags."
    ])]
    Annotate(kubectl::KubectlArgs) => |args| kubectl::run("annotate", args);
    /// karmadactl's `init`: names the command that replaces it
    #[command(hide = true)]
    Init(unsupported::UnsupportedArgs) => |args| unsupported::run(unsupported::UnsupportedVerb::Init, args);
    /// karmadactl's `deinit`: names the command that replaces it
    #[command(hide = true)]
    Deinit(unsupported::UnsupportedArgs) => |args| unsupported::run(unsupported::UnsupportedVerb::Deinit, args);
    /// karmadactl's `addons`: names the command that replaces it
    #[command(hide = true)]
    Addons(unsupported::UnsupportedArgs) => |args| unsupported::run(unsupported::UnsupportedVerb::Addons, args);
    /// Print the version of this client and of the control plane
    Version(version::VersionArgs) => version::run;
}
