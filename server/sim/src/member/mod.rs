//! Simulated member clusters: an API server with controllers, scheduler and kubelets that behave like a real
//! cluster.
//!
//! [`Member::start`] starts a member. Its components share a [`context::MemberContext`]: one watch per kind updates
//! compact stores, which all controllers read. Components use the API through a `kube::Client` without a socket.
//! External clients use the listener, which can have [`faults`].

pub mod admin;
pub mod autoscaler;
pub mod budget;
pub mod context;
pub mod custom_metrics;
pub mod endpoints;
pub mod faults;
pub mod informer;
pub mod interner;
pub mod metrics;
pub mod network;
pub mod node;
pub mod pod;
pub mod pod_lifecycle;
pub mod queue;
pub mod recorder;
pub mod resources;
pub mod scheduler;
pub mod shape;
pub mod store;
pub mod taint_eviction;
pub mod volumes;
pub mod workload;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crowsnest_kube_apiserver::ApiServer;
use crowsnest_kube_apiserver::admission::Plugin;
use crowsnest_kube_apiserver::controllers::{self, Controllers};
use crowsnest_kube_apiserver::server::{Config, Data};
use crowsnest_kubelet::Kubelet;
use crowsnest_kubelet::connect::{RegistryRuntime, install};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::context::{Features, MemberContext};
use self::faults::{Faults, Listener};
use self::recorder::Recorder;
use self::shape::{KUBERNETES_VERSION, NodeShape};
use crate::error::{Error, Result};
use crate::load::{self, Load, RunningLoad};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Features of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Metrics, a default storage class, load balancers.
    #[default]
    Default,
    /// Features of the clusters on which `conformance/fleet` was recorded: API server, controllers, scheduler,
    /// running pods.
    Conformance,
}

impl Profile {
    fn features(self) -> Features {
        let has_all = self == Self::Default;
        Features { metrics: has_all, storage: has_all, load_balancer: has_all }
    }
}

/// Configuration of a member.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    /// Name of the cluster; prefix of node names.
    pub name: String,
    pub data: Data,
    /// Port 0 selects a free port.
    pub listen: SocketAddr,
    /// Names and addresses in the serving certificate in addition to `localhost` and `127.0.0.1`.
    pub certificate_names: Vec<String>,
    pub profile: Profile,
    /// Shapes of the nodes, named `<name>-node-1…` for the first and `<name>-pool1-1…` for the second shape; `None`
    /// uses those of the profile.
    pub node_shapes: Option<Vec<NodeShape>>,
    /// Kubernetes version that the API server and the nodes report, such as `v1.36.2`.
    pub kubernetes_version: String,
}

impl MemberConfig {
    /// Configuration of a member in memory on a free local port.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            data: Data::Memory,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            certificate_names: Vec::new(),
            profile: Profile::Default,
            node_shapes: None,
            kubernetes_version: KUBERNETES_VERSION.to_owned(),
        }
    }

    fn effective_node_shapes(&self) -> Vec<NodeShape> {
        match (&self.node_shapes, self.profile) {
            (Some(shapes), _) => shapes.clone(),
            (None, Profile::Default) => vec![NodeShape::default()],
            (None, Profile::Conformance) => vec![NodeShape::conformance(&self.name)],
        }
    }
}

/// Kind of outage. The member's own controllers keep running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// The listener is closed, which ends all connections.
    Stopped,
    /// Requests are accepted without response; watches stay open without events.
    Silent,
    /// Traffic is dropped in both directions without closing connections.
    Partitioned,
}

/// Waits for `duration`; returns false if `stopped` is cancelled earlier.
async fn sleep_unless_stopped(duration: Duration, stopped: &CancellationToken) -> bool {
    tokio::select! {
        () = stopped.cancelled() => false,
        () = tokio::time::sleep(duration) => true,
    }
}

/// A running member.
pub struct Member {
    server: ApiServer,
    context: Arc<MemberContext>,
    kubelet: Arc<Kubelet>,
    faults: Arc<Faults>,
    listener: Listener,
    loads: Mutex<Vec<RunningLoad>>,
    /// The task that ends an outage or alternates outages.
    outage_task: AsyncMutex<Option<(CancellationToken, JoinHandle<()>)>>,
}

impl Member {
    /// Starts a member: API server, controllers, nodes, listener. Returns when its stores are synchronized and it
    /// listens.
    pub async fn start(config: MemberConfig) -> Result<Arc<Self>> {
        let start_error = |error: crowsnest_registry::error::Error| Error::Cluster {
            cluster: config.name.clone(),
            reason: error.to_string(),
        };
        let mut names = Config::new(&config.name, Data::Memory).certificate_names;
        names.extend(config.certificate_names.iter().cloned());
        names.push(config.listen.ip().to_string());
        let mut server = Config::new(&config.name, config.data.clone());
        // Simulated nodes are ready from the start.
        server.requests.disabled_admission_plugins = vec![Plugin::TaintNodesByCondition];
        server.certificate_names = names.clone();
        server.version = config.kubernetes_version.clone();
        let server = ApiServer::start(server).await.map_err(start_error)?;
        let kubelet = Kubelet::new(Arc::new(RegistryRuntime::new(server.registry().clone())));
        install(server.registry(), &kubelet);

        let client = server.admin();
        let (recorder, writer) = Recorder::new(client.clone());
        let context = Arc::new(MemberContext::new(&config.name, client, config.profile.features(), recorder));
        server.watch_tasks(context.tasks.clone());
        context.tasks.spawn_until_stop("event recorder", writer.run(context.stop.clone()));
        start_controllers(&context, &kubelet);
        // The recorded members ran OpenShift's controller manager.
        let service_certificates = config.profile == Profile::Conformance;
        let controllers =
            Controllers { service_accounts: true, service_certificates, quotas: true, storage_protection: true };
        controllers::start(&server, controllers);
        if context.features.metrics {
            server.api().add_delegate(Arc::new(metrics::Metrics::new(&context)));
            server.api().add_delegate(Arc::new(custom_metrics::CustomMetrics::new(&context)));
        }
        context.start_informers(server.registry()).await?;
        node::reconcile(&context, &config.effective_node_shapes(), &config.kubernetes_version).await?;
        volumes::write_storage_class(&context).await?;

        let faults = Arc::new(Faults::default());
        let router = faults.wrap_router(server.router());
        let listener = Listener::open(server.clone(), router, names, faults.clone(), config.listen).await?;
        server.advertise(listener.address()).await;
        Ok(Arc::new(Self {
            server,
            context,
            kubelet,
            faults,
            listener,
            loads: Mutex::default(),
            outage_task: AsyncMutex::default(),
        }))
    }

    pub fn name(&self) -> &str {
        &self.context.name
    }

    /// API server of the member.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Shared state of the member's components.
    pub fn context(&self) -> &Arc<MemberContext> {
        &self.context
    }

    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// `https://host:port`
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// A kubeconfig of a cluster administrator.
    pub fn kubeconfig(&self) -> Result<String> {
        let kubeconfig = self.server.kubeconfig("admin", &["system:masters".to_owned()], &self.url());
        kubeconfig.map_err(|error| Error::Cluster { cluster: self.name().to_owned(), reason: error.to_string() })
    }

    /// True if no outage is in effect.
    pub async fn is_reachable(&self) -> bool {
        self.listener.is_open().await && !self.faults.is_silent() && !self.faults.is_partitioned()
    }

    /// Makes the member unreachable until [`Member::resume`]: closes the listener and all connections.
    pub async fn pause(&self) {
        self.stop_outage_task().await;
        self.stop_listening().await;
    }

    /// Ends any outage; the member is reachable again on the same address.
    pub async fn resume(&self) -> Result<()> {
        self.stop_outage_task().await;
        self.end_outage().await
    }

    /// Starts an outage that lasts until the member is resumed.
    pub async fn start_outage(&self, outage: Outage) -> Result<()> {
        self.stop_outage_task().await;
        self.apply_outage(outage).await
    }

    /// Starts an outage that ends after `duration`.
    pub async fn start_outage_for(self: &Arc<Self>, outage: Outage, duration: Duration) -> Result<()> {
        self.start_outage(outage).await?;
        self.start_outage_task(|member, stopped| async move {
            if sleep_unless_stopped(duration, &stopped).await
                && let Some(member) = member.upgrade()
            {
                member.end_outage().await?;
            }
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Alternates between unreachable and reachable, each for `interval`, until the member is resumed.
    pub async fn flap(self: &Arc<Self>, interval: Duration) -> Result<()> {
        self.start_outage(Outage::Stopped).await?;
        self.start_outage_task(|member, stopped| async move {
            while sleep_unless_stopped(interval, &stopped).await {
                let Some(member) = member.upgrade() else { break };
                match member.is_reachable().await {
                    true => member.apply_outage(Outage::Stopped).await?,
                    false => member.end_outage().await?,
                }
            }
            Ok(())
        })
        .await;
        Ok(())
    }

    async fn apply_outage(&self, outage: Outage) -> Result<()> {
        match outage {
            Outage::Stopped => self.stop_listening().await,
            Outage::Silent => {
                self.end_outage().await?;
                self.faults.set_silent(true);
            }
            Outage::Partitioned => {
                self.end_outage().await?;
                self.faults.set_partitioned(true);
            }
        }
        Ok(())
    }

    async fn stop_listening(&self) {
        self.kubelet.close_sessions();
        self.listener.pause().await;
        self.faults.set_silent(false);
    }

    async fn end_outage(&self) -> Result<()> {
        self.faults.set_silent(false);
        self.faults.set_partitioned(false);
        self.listener.resume().await
    }

    /// Starts a task that controls outages, which replaces the previous one.
    async fn start_outage_task<F>(self: &Arc<Self>, control: impl FnOnce(Weak<Self>, CancellationToken) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let stop = self.context.stop.child_token();
        let control = control(Arc::downgrade(self), stop.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = control.await {
                tracing::error!(%error, "cannot end the outage of a member");
            }
        });
        *self.outage_task.lock().await = Some((stop, task));
    }

    /// Stops the task that controls outages, so that it does not override the next call.
    async fn stop_outage_task(&self) {
        let Some((stop, task)) = self.outage_task.lock().await.take() else { return };
        stop.cancel();
        if let Err(error) = task.await {
            tracing::error!(%error, "the outage task of a member panicked");
        }
    }

    /// Fails a node: it becomes NotReady and is tainted, and its pods are evicted.
    pub async fn fail_node(&self, name: &str) -> Result<()> {
        node::set_failed(&self.context, name, true).await
    }

    /// Recovers a failed node.
    pub async fn recover_node(&self, name: &str) -> Result<()> {
        node::set_failed(&self.context, name, false).await
    }

    /// Creates missing synthetic workloads and starts their churn, which ends with the member or is replaced by the
    /// next call.
    pub async fn start_load(&self, load: Load) -> Result<load::LoadReport> {
        load.validate().map_err(Error::Invalid)?;
        let task_error = |error: tokio::task::JoinError| Error::Cluster {
            cluster: self.name().to_owned(),
            reason: format!("synthetic load: {error}"),
        };
        // The churn of the previous load with this seed must not scale down new workloads.
        let previous: Vec<RunningLoad> =
            self.loads.lock().extract_if(.., |running| running.seed == load.seed).collect();
        for running in previous {
            running.stop().await.map_err(task_error)?;
        }
        let (context, registry) = (self.context.clone(), self.server.registry().clone());
        // Runs as a task, so that it completes if the client disconnects, and members can be filled concurrently.
        let task = self.context.tasks.tracker().spawn(async move { load::start(&context, &registry, load).await });
        let running = task.await.map_err(task_error)??;
        let report = running.report.clone();
        self.loads.lock().push(running);
        Ok(report)
    }

    /// Number of changes by the churn of all loads.
    pub fn churn_changes(&self) -> u64 {
        self.loads.lock().iter().map(RunningLoad::changes).sum()
    }

    /// Stops the listener, then all tasks, then the API server.
    pub async fn stop(&self) -> Result<()> {
        self.pause().await;
        self.listener.release_address();
        self.context.tasks.stop().await;
        self.kubelet.stop().await;
        self.context.close();
        self.server
            .stop()
            .await
            .map_err(|error| Error::Cluster { cluster: self.name().to_owned(), reason: error.to_string() })
    }
}

/// Registers the handlers of all controllers and starts their tasks, before the informers run.
fn start_controllers(context: &Arc<MemberContext>, kubelet: &Arc<Kubelet>) {
    pod_lifecycle::start(context, kubelet);
    scheduler::start(context);
    node::start(context);
    taint_eviction::start(context);
    workload::start(context);
    endpoints::start(context);
    volumes::start(context);
    budget::start(context);
    autoscaler::start(context);
}
