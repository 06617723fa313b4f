//! `crowsnest register`: registers a cluster in pull mode with a bootstrap token. Verifies the control plane by its
//! token signature and CA hash, requests the agent's certificate, which authorizes it for this cluster only, and runs
//! the agent in the cluster or in this process.

mod discovery;
mod manifests;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::kubeconfig::{self, KubeconfigContext};
use crowsnest_component_base::user_agent;
use crowsnest_members::unregister::{AGENT, AGENT_NAMESPACE};
use crowsnest_members::{ClusterLocation, JoinOptions};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};

use crowsnest_agent::agent::certificate::CertificateRequest;
use crowsnest_agent::agent::{self, Config, Rotation};
use crowsnest_cli::clients::describe_cause;
use crowsnest_cli::duration::parse_duration;
use crowsnest_cli::examples;
use crowsnest_cli::output::terminal;
use crowsnest_process::serving::ProbeAddresses;
use discovery::{Token, TrustedCas};

/// Interval and threshold of the certificate renewal of an agent in this process: the defaults of its flags.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(300);
const RENEWAL_THRESHOLD: f64 = 0.2;
/// Timeout of the agent's Deployment to become available.
const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest token create --print-register-command          run at the control plane, prints the command for the cluster",
    "crowsnest register cp.example:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:… --cluster-name oslo --agent-image crowsnest:latest",
    "crowsnest register cp.example:6443 --token … --discovery-token-ca-cert-hash … --cluster-name oslo --run    run the agent in this process",
    "crowsnest unregister oslo                                run at the control plane to remove the cluster",
])]
pub(crate) struct RegisterArgs {
    /// Address of the control plane
    #[arg(value_name = "HOST:PORT")]
    control_plane: String,
    /// Bootstrap token
    #[arg(long, env = "CROWSNEST_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Token,
    /// Public key hash of the control plane's CA, as sha256:HASH; may be repeated to accept any of several
    #[arg(long, value_name = "HASH", required_unless_present = "discovery_token_unsafe_skip_ca_verification")]
    discovery_token_ca_cert_hash: Vec<discovery::CaHash>,
    /// Trust any control plane that signs with the token; everybody who knows the token can impersonate it
    #[arg(long, conflicts_with = "discovery_token_ca_cert_hash")]
    discovery_token_unsafe_skip_ca_verification: bool,
    /// Timeout of discovering the control plane, and of having the certificate signed
    #[arg(long, default_value = "5m", value_parser = parse_duration, value_name = "DURATION")]
    discovery_timeout: Duration,
    /// Name of this cluster in the control plane
    #[arg(long, value_name = "NAME")]
    cluster_name: ClusterName,
    /// Kubeconfig file of this cluster with administrator permissions [default: $KUBECONFIG, then ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Namespace of the tokens, in this cluster and in the control plane
    #[arg(long, default_value = crowsnest_members::join::CLUSTER_NAMESPACE, value_name = "NAMESPACE")]
    cluster_namespace: String,
    /// Provider of this cluster
    #[arg(long, value_name = "PROVIDER")]
    cluster_provider: Option<String>,
    /// Region of this cluster
    #[arg(long, value_name = "REGION")]
    cluster_region: Option<String>,
    /// Zones of this cluster, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "ZONES")]
    cluster_zones: Vec<String>,
    /// Lifetime of the agent's certificate, in seconds
    #[arg(long, default_value_t = 31_536_000, value_name = "SECONDS")]
    cert_expiration_seconds: i32,
    /// Renew the agent's certificate before it expires
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    enable_cert_rotation: bool,
    /// URL of a proxy for connections to the control plane
    #[arg(long, value_name = "URL")]
    proxy_server_address: Option<http::Uri>,
    /// Namespace of the agent
    #[arg(short, long, default_value = AGENT_NAMESPACE)]
    namespace: String,
    /// Image of the agent, with crowsnest as its entry point
    #[arg(long, visible_alias = "karmada-agent-image", value_name = "IMAGE", required_unless_present = "run")]
    agent_image: Option<String>,
    /// Number of agent replicas
    #[arg(long, visible_alias = "karmada-agent-replicas", default_value_t = 1, value_name = "N")]
    agent_replicas: i32,
    /// Run the agent in this process instead of deploying it to the cluster
    #[arg(long, conflicts_with = "agent_image")]
    run: bool,
    /// Kubeconfig file to write for the agent, with --run
    #[arg(long, value_name = "FILE", default_value = "crowsnest-agent.kubeconfig")]
    agent_kubeconfig: PathBuf,
    /// Check whether the cluster can be registered; request no certificate and write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: RegisterArgs) -> anyhow::Result<ExitCode> {
    let member = member_client(&args).await?;
    if !args.run {
        reject_existing_agent(&member, &args).await?;
    }
    let trusted_cas = args.trusted_cas();
    let discovery = tokio::time::timeout(
        args.discovery_timeout,
        discovery::discover(&args.control_plane, args.proxy_server_address.clone(), &args.token, &trusted_cas),
    );
    let control_plane = discovery.await.with_context(|| {
        format!(
            "cannot discover the control plane at {} within {} s",
            args.control_plane,
            args.discovery_timeout.as_secs()
        )
    })??;
    writeln!(terminal::stderr(), "verified the control plane at {}", control_plane.server)?;
    if args.dry_run {
        let mode = if args.run { "an agent in this process" } else { "an agent in the cluster" };
        writeln!(std::io::stdout(), "cluster({}) would be registered, with {mode} (dry run)", args.cluster_name)?;
        return Ok(ExitCode::SUCCESS);
    }
    let request = CertificateRequest {
        cluster: &args.cluster_name,
        expiration_seconds: args.cert_expiration_seconds,
        timeout: args.discovery_timeout,
    };
    let issued = request.submit(control_plane.client(&args.token)?).await?;
    let kubeconfig = manifests::kubeconfig(&control_plane, args.proxy_server_address.as_ref(), &issued);
    writeln!(terminal::stderr(), "received the certificate of the agent of cluster {}", args.cluster_name)?;
    if args.run {
        return run_in_process(args, &kubeconfig).await;
    }
    deploy(&args, &member, &kubeconfig).await
}

impl RegisterArgs {
    fn trusted_cas(&self) -> TrustedCas {
        match self.discovery_token_unsafe_skip_ca_verification {
            true => TrustedCas::Any,
            false => TrustedCas::Hashes(self.discovery_token_ca_cert_hash.clone()),
        }
    }
}

async fn member_client(args: &RegisterArgs) -> anyhow::Result<Client> {
    let config = kubeconfig::load_config(args.kubeconfig.as_deref(), args.context.as_deref()).await;
    let mut config = config.context("cannot find the kubeconfig of this cluster; specify it with --kubeconfig")?;
    user_agent::set_in_config(&mut config);
    Ok(Client::try_from(config)?)
}

/// Rejects a cluster that has an agent already, or a Secret or ServiceAccount of the agent's names that `register` did
/// not create.
async fn reject_existing_agent(member: &Client, args: &RegisterArgs) -> anyhow::Result<()> {
    let namespace = args.namespace.as_str();
    if find_object::<Deployment>(member, namespace, AGENT).await?.is_some() {
        bail!(
            "this cluster already has an agent, deployment {namespace}/{AGENT}; remove it with `crowsnest unregister NAME --cluster-kubeconfig …`"
        );
    }
    let secret = find_object::<core::Secret>(member, namespace, manifests::SECRET).await?.map(|found| found.metadata);
    let account =
        find_object::<core::ServiceAccount>(member, namespace, manifests::ACCOUNT).await?.map(|found| found.metadata);
    for (resource, name, metadata) in
        [("secret", manifests::SECRET, secret), ("serviceaccount", manifests::ACCOUNT, account)]
    {
        if metadata.is_some_and(|metadata| !is_created_by_register(&metadata)) {
            bail!(
                "{resource} {namespace}/{name} exists and was not created by `crowsnest register`; delete it, or choose another namespace with -n"
            );
        }
    }
    Ok(())
}

async fn find_object<K>(member: &Client, namespace: &str, name: &str) -> anyhow::Result<Option<K>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let found = Api::<K>::namespaced(member.clone(), namespace).get_opt(name).await;
    found.map_err(|error| anyhow!("cannot read from this cluster: {}", describe_cause(&error)))
}

/// True if `register` created the object.
fn is_created_by_register(metadata: &ObjectMeta) -> bool {
    let mut managers = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.manager.as_deref());
    managers.any(|manager| manager == crowsnest_install::MANAGER)
}

async fn run_in_process(args: RegisterArgs, kubeconfig: &str) -> anyhow::Result<ExitCode> {
    manifests::write_kubeconfig(&args.agent_kubeconfig, kubeconfig)?;
    let kubeconfig_file = args.agent_kubeconfig.display();
    writeln!(
        terminal::stderr(),
        "the agent runs in this process; start it again with `crowsnest agent --control-plane-kubeconfig {kubeconfig_file}`"
    )?;
    // The agent requires an explicit kubeconfig of this cluster.
    let member = match args.kubeconfig {
        Some(file) => file,
        None => default_kubeconfig()?,
    };
    let rotation = Rotation {
        secret: None,
        expiration_seconds: args.cert_expiration_seconds,
        checking_interval: RENEWAL_CHECK_INTERVAL,
        remaining_time_threshold: RENEWAL_THRESHOLD,
    };
    agent::run(Config {
        registration: JoinOptions {
            namespace: args.cluster_namespace,
            location: ClusterLocation {
                provider: args.cluster_provider,
                region: args.cluster_region,
                zones: args.cluster_zones,
            },
            ..JoinOptions::new(args.cluster_name)
        },
        control_plane: KubeconfigContext { file: args.agent_kubeconfig, context: None },
        kubeconfig: Some(KubeconfigContext { file: member, context: args.context }),
        probe_addresses: ProbeAddresses::default(),
        rotation: args.enable_cert_rotation.then_some(rotation),
    })
    .await
}

fn default_kubeconfig() -> anyhow::Result<PathBuf> {
    match std::env::var_os("KUBECONFIG") {
        Some(file) => Ok(file.into()),
        None => Ok(std::env::home_dir().context("cannot find the home directory")?.join(".kube/config")),
    }
}

async fn deploy(args: &RegisterArgs, member: &Client, kubeconfig: &str) -> anyhow::Result<ExitCode> {
    let image = args.agent_image.as_deref().unwrap_or_default();
    let deployment = manifests::AgentDeployment {
        name: &args.cluster_name,
        image,
        replicas: args.agent_replicas,
        namespace: &args.namespace,
        cluster_namespace: &args.cluster_namespace,
        provider: args.cluster_provider.as_deref(),
        region: args.cluster_region.as_deref(),
        zones: &args.cluster_zones,
        renewal_seconds: args.enable_cert_rotation.then_some(args.cert_expiration_seconds),
    };
    let result = crowsnest_install::apply_all(member, &deployment.manifests(kubeconfig)).await;
    result.context("cannot deploy the agent to this cluster")?;
    let deployments: Api<Deployment> = Api::namespaced(member.clone(), &args.namespace);
    let is_available = |deployment: Option<&Deployment>| {
        let ready = deployment.and_then(|deployment| deployment.status.as_ref()?.available_replicas);
        ready.is_some_and(|ready| ready > 0)
    };
    let rollout = tokio::time::timeout(ROLLOUT_TIMEOUT, await_condition(deployments, AGENT, is_available)).await;
    let deployment_name = format!("{}/{AGENT}", args.namespace);
    rollout.map_err(|_| {
        anyhow!(
            "the agent is not available after {} s; see `kubectl describe deployment -n {} {AGENT}`",
            ROLLOUT_TIMEOUT.as_secs(),
            args.namespace
        )
    })??;
    writeln!(
        std::io::stdout(),
        "cluster({}) is registered successfully; its agent is deployment {deployment_name}",
        args.cluster_name
    )?;
    Ok(ExitCode::SUCCESS)
}
