//! `crowsnest register`: a cluster that nobody can dial registers itself with a bootstrap token. The control plane is known by what it signs
//! with the token and by its authority's hash; it gives the agent a certificate, and rights for this cluster alone. Then the agent runs, in
//! the cluster or here.

mod discovery;
mod manifests;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::kubeconfig;
use crowsnest_members::Reported;
use crowsnest_members::unregister::{AGENT, AGENT_NAMESPACE};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};

use crowsnest_agent::agent::certificate::Wanted;
use crowsnest_agent::agent::{self, Config, Rotation};
use crowsnest_cli::duration::duration;
use crowsnest_cli::output::terminal;
use crowsnest_cli::reach::said;
use discovery::{Pins, Token};

/// How often the agent that runs here looks at its certificate, and which part of its time is left when it renews it: its flags' defaults.
const CHECKED_EVERY: Duration = Duration::from_secs(300);
const RENEWED_AT: f64 = 0.2;
/// How long the agent's Deployment may take to be available.
const ROLLOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest token create --print-register-command          at the control plane: the command to run at the cluster\n  crowsnest register cp.example:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:… --cluster-name oslo --agent-image crowsnest:latest\n  crowsnest register cp.example:6443 --token … --discovery-token-ca-cert-hash … --cluster-name oslo --run    the agent runs here\n  crowsnest unregister oslo                                at the control plane: takes it out again"
)]
pub(crate) struct RegisterArgs {
    /// The control plane, HOST:PORT
    #[arg(value_name = "HOST:PORT")]
    control_plane: String,
    /// The bootstrap token
    #[arg(long, env = "CROWSNEST_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Token,
    /// The control plane's authority, as sha256:HASH; may be repeated: one of them
    #[arg(long, value_name = "HASH", required_unless_present = "discovery_token_unsafe_skip_ca_verification")]
    discovery_token_ca_cert_hash: Vec<discovery::Pin>,
    /// Believe whoever signs with the token: anybody who knows it can
    #[arg(long, conflicts_with = "discovery_token_ca_cert_hash")]
    discovery_token_unsafe_skip_ca_verification: bool,
    /// How long finding the control plane, and having the certificate signed, may each take
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    discovery_timeout: Duration,
    /// This cluster's name in the fleet
    #[arg(long, value_name = "NAME")]
    cluster_name: ClusterName,
    /// Kubeconfig of this cluster, of an administrator [default: $KUBECONFIG, then ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Namespace of the tokens, here and in the control plane
    #[arg(long, default_value = crowsnest_members::join::CLUSTER_NAMESPACE, value_name = "NAMESPACE")]
    cluster_namespace: String,
    /// Who runs this cluster
    #[arg(long, value_name = "PROVIDER")]
    cluster_provider: Option<String>,
    /// Where this cluster is
    #[arg(long, value_name = "REGION")]
    cluster_region: Option<String>,
    /// Its failure zones, by comma
    #[arg(long, value_delimiter = ',', value_name = "ZONES")]
    cluster_zones: Vec<String>,
    /// How long the agent's certificate holds
    #[arg(long, default_value_t = 31_536_000, value_name = "SECONDS")]
    cert_expiration_seconds: i32,
    /// The agent renews it in time
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    enable_cert_rotation: bool,
    /// A proxy on the way to the control plane
    #[arg(long, value_name = "URL")]
    proxy_server_address: Option<http::Uri>,
    /// Namespace of the agent
    #[arg(short, long, default_value = AGENT_NAMESPACE)]
    namespace: String,
    /// The agent's image, with crowsnest as its entry point
    #[arg(long, visible_alias = "karmada-agent-image", value_name = "IMAGE", required_unless_present = "run")]
    agent_image: Option<String>,
    /// How many agents run
    #[arg(long, visible_alias = "karmada-agent-replicas", default_value_t = 1, value_name = "N")]
    agent_replicas: i32,
    /// Run the agent here, in this process, and put none into the cluster
    #[arg(long, conflicts_with = "agent_image")]
    run: bool,
    /// With --run: where the agent's kubeconfig of the control plane is written
    #[arg(long, value_name = "FILE", default_value = "crowsnest-agent.kubeconfig")]
    agent_kubeconfig: PathBuf,
    /// Only look whether the cluster could be registered: no certificate is asked for, and nothing is written
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: RegisterArgs) -> anyhow::Result<ExitCode> {
    let member = member(&args).await?;
    if !args.run {
        nothing_there(&member, &args).await?;
    }
    let pins = args.pins();
    let found = tokio::time::timeout(
        args.discovery_timeout,
        discovery::discover(&args.control_plane, args.proxy_server_address.clone(), &args.token, &pins),
    );
    let control_plane = found.await.with_context(|| {
        format!("{} did not answer within {} s", args.control_plane, args.discovery_timeout.as_secs())
    })??;
    writeln!(terminal::stderr(), "the control plane at {} is the one the token is of", control_plane.server)?;
    if args.dry_run {
        let how = if args.run { "an agent here" } else { "an agent in it" };
        writeln!(std::io::stdout(), "cluster({}) would be registered, with {how} (dry run)", args.cluster_name)?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted =
        Wanted { cluster: &args.cluster_name, seconds: args.cert_expiration_seconds, within: args.discovery_timeout };
    let issued = wanted.ask(control_plane.client(&args.token)?).await?;
    let kubeconfig = manifests::kubeconfig(&control_plane, args.proxy_server_address.as_ref(), &issued);
    writeln!(terminal::stderr(), "the agent of cluster {} has its certificate", args.cluster_name)?;
    if args.run {
        return run_here(args, &kubeconfig).await;
    }
    deploy(&args, &member, &kubeconfig).await
}

impl RegisterArgs {
    fn pins(&self) -> Pins {
        match self.discovery_token_unsafe_skip_ca_verification {
            true => Pins::Anybody,
            false => Pins::Of(self.discovery_token_ca_cert_hash.clone()),
        }
    }
}

async fn member(args: &RegisterArgs) -> anyhow::Result<Client> {
    let config = kubeconfig::config(args.kubeconfig.as_deref(), args.context.as_deref()).await;
    Ok(Client::try_from(config.context("this cluster is not known: name its kubeconfig with --kubeconfig")?)?)
}

/// An agent that is there belongs to somebody, and so do a Secret and an account of its names, but those that an earlier attempt left.
async fn nothing_there(member: &Client, args: &RegisterArgs) -> anyhow::Result<()> {
    let namespace = args.namespace.as_str();
    if there::<Deployment>(member, namespace, AGENT).await?.is_some() {
        bail!(
            "this cluster has an agent, deployment {namespace}/{AGENT}: `crowsnest unregister NAME --cluster-kubeconfig …` takes it out of its fleet"
        );
    }
    let secret = there::<core::Secret>(member, namespace, manifests::SECRET).await?.map(|found| found.metadata);
    let account =
        there::<core::ServiceAccount>(member, namespace, manifests::ACCOUNT).await?.map(|found| found.metadata);
    for (what, name, found) in [("secret", manifests::SECRET, secret), ("serviceaccount", manifests::ACCOUNT, account)]
    {
        if found.is_some_and(|found| !is_ours(&found)) {
            bail!(
                "this cluster has a {what} {namespace}/{name} that somebody else made: delete it, or choose another namespace with -n"
            );
        }
    }
    Ok(())
}

async fn there<K>(member: &Client, namespace: &str, name: &str) -> anyhow::Result<Option<K>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let found = Api::<K>::namespaced(member.clone(), namespace).get_opt(name).await;
    found.map_err(|error| anyhow!("asking this cluster: {}", said(&error)))
}

/// Whether `register` wrote it.
fn is_ours(metadata: &ObjectMeta) -> bool {
    let mut managers = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.manager.as_deref());
    managers.any(|manager| manager == crowsnest_install::MANAGER)
}

async fn run_here(args: RegisterArgs, kubeconfig: &str) -> anyhow::Result<ExitCode> {
    manifests::keep(&args.agent_kubeconfig, kubeconfig)?;
    let kept = args.agent_kubeconfig.display();
    writeln!(
        terminal::stderr(),
        "the agent runs here; `crowsnest agent --control-plane-kubeconfig {kept}` starts it again"
    )?;
    // The agent is to know this cluster by a file of its own, as its flags name one.
    let member = match args.kubeconfig {
        Some(file) => file,
        None => default_kubeconfig()?,
    };
    let rotation = Rotation {
        secret: None,
        expiration_seconds: args.cert_expiration_seconds,
        checking_interval: CHECKED_EVERY,
        remaining_time_threshold: RENEWED_AT,
    };
    agent::run(Config {
        cluster_name: args.cluster_name,
        control_plane_kubeconfig: args.agent_kubeconfig,
        control_plane_context: None,
        kubeconfig: Some(member),
        context: args.context,
        cluster_api_endpoint: None,
        cluster_namespace: args.cluster_namespace,
        cluster_provider: args.cluster_provider,
        cluster_region: args.cluster_region,
        cluster_zones: args.cluster_zones,
        report: Reported { cluster: true, impersonator: true },
        health_probe_bind_address: None,
        metrics_bind_address: None,
        rotation: args.enable_cert_rotation.then_some(rotation),
    })
    .await
}

fn default_kubeconfig() -> anyhow::Result<PathBuf> {
    match std::env::var_os("KUBECONFIG") {
        Some(file) => Ok(file.into()),
        None => Ok(std::env::home_dir().context("there is no home folder")?.join(".kube/config")),
    }
}

async fn deploy(args: &RegisterArgs, member: &Client, kubeconfig: &str) -> anyhow::Result<ExitCode> {
    let image = args.agent_image.as_deref().unwrap_or_default();
    let command = manifests::Agent {
        name: &args.cluster_name,
        image,
        replicas: args.agent_replicas,
        namespace: &args.namespace,
        cluster_namespace: &args.cluster_namespace,
        provider: args.cluster_provider.as_deref(),
        region: args.cluster_region.as_deref(),
        zones: &args.cluster_zones,
        renewed: args.enable_cert_rotation.then_some(args.cert_expiration_seconds),
    };
    let applied = crowsnest_install::apply_all(member, &command.manifests(kubeconfig)).await;
    applied.context("putting the agent into this cluster")?;
    let deployments: Api<Deployment> = Api::namespaced(member.clone(), &args.namespace);
    let runs = |deployment: Option<&Deployment>| {
        let ready = deployment.and_then(|deployment| deployment.status.as_ref()?.available_replicas);
        ready.is_some_and(|ready| ready > 0)
    };
    let waited = tokio::time::timeout(ROLLOUT, await_condition(deployments, AGENT, runs)).await;
    let place = format!("{}/{AGENT}", args.namespace);
    waited.map_err(|_| {
        anyhow!(
            "no agent runs after {} s: `kubectl describe deployment -n {} {AGENT}` tells why",
            ROLLOUT.as_secs(),
            args.namespace
        )
    })??;
    writeln!(
        std::io::stdout(),
        "cluster({}) is registered successfully; its agent is deployment {place}",
        args.cluster_name
    )?;
    Ok(ExitCode::SUCCESS)
}
