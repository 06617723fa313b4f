//! Simulated member clusters: an API server with controllers, a scheduler and kubelets that act like a real cluster's.
//!
//! [`Member::start`] brings one up. Its parts share a [`world::World`]: one watch per kind feeds compact stores, which every
//! controller reads. All parts talk to the API through a `kube::Client` without a socket; outsiders come through [`faults`].

pub mod admin;
pub mod autoscaler;
pub mod budget;
pub mod custom_metrics;
pub mod endpoints;
pub mod faults;
pub mod informer;
pub mod interner;
pub mod metrics;
pub mod node;
pub mod pod;
pub mod podlife;
pub mod queue;
pub mod recorder;
pub mod resources;
pub mod scheduler;
pub mod shape;
pub mod store;
pub mod taint_eviction;
pub mod volumes;
pub mod wire;
pub mod workload;
pub mod world;

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

use self::faults::{Faults, Listening};
use self::recorder::Recorder;
use self::shape::{KUBERNETES_VERSION, NodeShape};
use self::world::{Features, World};
use crate::error::{Error, Result};
use crate::load::{self, Load, Loaded};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// What a member is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Metrics, a default storage class, load balancers.
    #[default]
    Default,
    /// The fleet that `conformance/fleet` was recorded on: API server, controllers, scheduler, running pods and nothing else.
    Conformance,
}

impl Profile {
    fn features(self) -> Features {
        let everything = self == Self::Default;
        Features { metrics: everything, storage: everything, load_balancer: everything }
    }
}

/// How to start a member.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    /// Name of the cluster; nodes are named after it.
    pub name: String,
    pub data: Data,
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Names and addresses in the serving certificate, beside `localhost` and `127.0.0.1`.
    pub names: Vec<String>,
    pub profile: Profile,
    /// Shapes of the nodes, `<name>-node-1…` of the first and `<name>-pool1-1…` of the second; that of the profile when `None`.
    pub node_shapes: Option<Vec<NodeShape>>,
    /// Kubernetes version that the API server and the nodes report, such as `v1.36.2`.
    pub kubernetes_version: String,
}

impl MemberConfig {
    /// A member in memory on a free local port.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            data: Data::Memory,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            names: Vec::new(),
            profile: Profile::Default,
            node_shapes: None,
            kubernetes_version: KUBERNETES_VERSION.to_owned(),
        }
    }

    fn shapes(&self) -> Vec<NodeShape> {
        match (&self.node_shapes, self.profile) {
            (Some(shapes), _) => shapes.clone(),
            (None, Profile::Default) => vec![NodeShape::default()],
            (None, Profile::Conformance) => vec![NodeShape::conformance(&self.name)],
        }
    }
}

/// How a member is out of reach. Its own controllers go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// Nobody listens, and what is open ends.
    Stopped,
    /// Requests are taken and never answered; watches stay open and say nothing.
    Silent,
    /// Nothing arrives in either direction, and no connection ends.
    Partitioned,
}

/// Whether so much time passes before somebody says stop.
async fn passes(time: Duration, stopped: &CancellationToken) -> bool {
    tokio::select! {
        () = stopped.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}

/// A running member.
pub struct Member {
    server: ApiServer,
    world: Arc<World>,
    kubelet: Arc<Kubelet>,
    faults: Arc<Faults>,
    listening: Listening,
    loads: Mutex<Vec<Loaded>>,
    /// The task that ends an outage, or begins the next.
    turns: AsyncMutex<Option<(CancellationToken, JoinHandle<()>)>>,
}

impl Member {
    /// Starts a member: API server, controllers, nodes, listener. Returns when its stores are complete and it listens.
    pub async fn start(config: MemberConfig) -> Result<Arc<Self>> {
        let refused = |error: crowsnest_registry::error::Error| Error::Start {
            cluster: config.name.clone(),
            reason: error.to_string(),
        };
        let mut names = Config::new(&config.name, Data::Memory).names;
        names.extend(config.names.iter().cloned());
        names.push(config.listen.ip().to_string());
        let mut server = Config::new(&config.name, config.data.clone());
        // The nodes here are ready from the beginning.
        server.disabled_admission = vec![Plugin::TaintNodesByCondition];
        server.names = names.clone();
        server.version = config.kubernetes_version.clone();
        let server = ApiServer::start(server).await.map_err(refused)?;
        let kubelet = Kubelet::new(Arc::new(RegistryRuntime::new(server.registry().clone())));
        install(server.registry(), &kubelet);

        let client = server.admin();
        let (recorder, writer) = Recorder::new(client.clone());
        let world = Arc::new(World::new(&config.name, client, config.profile.features(), recorder));
        server.watch_tasks(world.tasks.clone());
        world.tasks.keep("event recorder", writer.run(world.stop.clone()));
        start_controllers(&world, &kubelet);
        // The recorded members ran OpenShift's controller manager.
        let service_certificates = config.profile == Profile::Conformance;
        controllers::start(&server, Controllers { service_accounts: true, service_certificates, quotas: true });
        if world.features.metrics {
            server.api().add_delegate(Arc::new(metrics::Metrics::new(&world)));
            server.api().add_delegate(Arc::new(custom_metrics::CustomMetrics::new(&world)));
        }
        world.watch(server.registry()).await?;
        node::reconcile(&world, &config.shapes(), &config.kubernetes_version).await?;
        volumes::write_storage_class(&world).await?;

        let faults = Arc::new(Faults::default());
        let router = faults.around(server.router());
        let listening = Listening::open(server.clone(), router, names, faults.clone(), config.listen).await?;
        server.advertise(listening.address()).await;
        Ok(Arc::new(Self {
            server,
            world,
            kubelet,
            faults,
            listening,
            loads: Mutex::default(),
            turns: AsyncMutex::default(),
        }))
    }

    pub fn name(&self) -> &str {
        &self.world.name
    }

    /// The API server underneath.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Stores and settings, for the kubelet's streams and tests.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Where the member listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// `https://host:port`
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// A kubeconfig of a cluster administrator.
    pub fn kubeconfig(&self) -> Result<String> {
        let made = self.server.kubeconfig("admin", &["system:masters".to_owned()], &self.url());
        made.map_err(|error| Error::Start { cluster: self.name().to_owned(), reason: error.to_string() })
    }

    pub async fn is_reachable(&self) -> bool {
        self.listening.is_open().await && !self.faults.is_silent() && !self.faults.is_partitioned()
    }

    /// Makes the member unreachable until it is resumed: nobody listens, and what is open ends.
    pub async fn pause(&self) {
        self.end_turns().await;
        self.stop_listening().await;
    }

    /// Makes the member reachable again, on the same address, whatever it was that it suffered from.
    pub async fn resume(&self) -> Result<()> {
        self.end_turns().await;
        self.mend().await
    }

    /// Makes the member unreachable in one of the ways there are, until it is resumed.
    pub async fn cut_off(&self, outage: Outage) -> Result<()> {
        self.end_turns().await;
        self.begin(outage).await
    }

    /// The same for a while.
    pub async fn cut_off_for(self: &Arc<Self>, outage: Outage, time: Duration) -> Result<()> {
        self.cut_off(outage).await?;
        self.take_turns(|member, stopped| async move {
            if passes(time, &stopped).await
                && let Some(member) = member.upgrade()
            {
                member.mend().await?;
            }
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Makes the member unreachable and reachable in turn, so long each, until it is resumed.
    pub async fn flap(self: &Arc<Self>, every: Duration) -> Result<()> {
        self.cut_off(Outage::Stopped).await?;
        self.take_turns(|member, stopped| async move {
            while passes(every, &stopped).await {
                let Some(member) = member.upgrade() else { break };
                match member.is_reachable().await {
                    true => member.begin(Outage::Stopped).await?,
                    false => member.mend().await?,
                }
            }
            Ok(())
        })
        .await;
        Ok(())
    }

    async fn begin(&self, outage: Outage) -> Result<()> {
        match outage {
            Outage::Stopped => self.stop_listening().await,
            Outage::Silent => {
                self.mend().await?;
                self.faults.set_silent(true);
            }
            Outage::Partitioned => {
                self.mend().await?;
                self.faults.set_partitioned(true);
            }
        }
        Ok(())
    }

    async fn stop_listening(&self) {
        self.kubelet.hang_up();
        self.listening.pause().await;
        self.faults.set_silent(false);
    }

    async fn mend(&self) -> Result<()> {
        self.faults.set_silent(false);
        self.faults.set_partitioned(false);
        self.listening.resume().await
    }

    /// Leaves the member to a task until somebody says otherwise.
    async fn take_turns<F>(self: &Arc<Self>, turns: impl FnOnce(Weak<Self>, CancellationToken) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let stop = self.world.stop.child_token();
        let turns = turns(Arc::downgrade(self), stop.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = turns.await {
                tracing::error!(%error, "a member does not come back");
            }
        });
        *self.turns.lock().await = Some((stop, task));
    }

    /// What was said last holds. A turn that has begun is ended first.
    async fn end_turns(&self) {
        let Some((stop, task)) = self.turns.lock().await.take() else { return };
        stop.cancel();
        if let Err(error) = task.await {
            tracing::error!(%error, "the task of a member's outage ended badly");
        }
    }

    /// The node is lost: NotReady, tainted, its pods evicted.
    pub async fn fail_node(&self, name: &str) -> Result<()> {
        node::set_failed(&self.world, name, true).await
    }

    /// A lost node is back.
    pub async fn recover_node(&self, name: &str) -> Result<()> {
        node::set_failed(&self.world, name, false).await
    }

    /// Brings the member up to a number of synthetic workloads; churn goes on until the member stops, or is asked for anew.
    pub async fn start_load(&self, load: Load) -> Result<load::Report> {
        load.check().map_err(Error::Invalid)?;
        let ended = |error: tokio::task::JoinError| Error::Start {
            cluster: self.name().to_owned(),
            reason: format!("synthetic load: {error}"),
        };
        // The churn of the same load before must not take away what is topped up now.
        let before: Vec<Loaded> = self.loads.lock().extract_if(.., |known| known.seed == load.seed).collect();
        for loaded in before {
            loaded.stop().await.map_err(ended)?;
        }
        let (world, registry) = (self.world.clone(), self.server.registry().clone());
        // A task of its own: it goes on when whoever asked goes away, and members fill at the same time.
        let filling = self.world.tasks.passing().spawn(async move { load::start(&world, &registry, load).await });
        let loaded = filling.await.map_err(ended)??;
        let report = loaded.report.clone();
        self.loads.lock().push(loaded);
        Ok(report)
    }

    /// Changes that the churn of the loads has made.
    pub fn changes(&self) -> u64 {
        self.loads.lock().iter().map(Loaded::changes).sum()
    }

    /// Stops listening, then every task, then the API server.
    pub async fn stop(&self) -> Result<()> {
        self.pause().await;
        self.world.tasks.stop().await;
        self.kubelet.stop().await;
        self.world.close();
        self.server
            .stop()
            .await
            .map_err(|error| Error::Start { cluster: self.name().to_owned(), reason: error.to_string() })
    }
}

/// Registers every controller's handlers and starts its task; nothing happens before the watches run.
fn start_controllers(world: &Arc<World>, kubelet: &Arc<Kubelet>) {
    podlife::start(world, kubelet);
    scheduler::start(world);
    node::start(world);
    taint_eviction::start(world);
    workload::start(world);
    endpoints::start(world);
    volumes::start(world);
    budget::start(world);
    autoscaler::start(world);
}
