//! The tasks of all loops: started once the control plane has been read, joined by the one that owns them.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::queue::{Outcome, Queue};
use super::world::{Listener, Teller};
use super::{
    Loops, Unwell, access, applications, autoscaling, bindings, certificates, clusters, descheduling, distributor,
    evictions, namespaces, quotas, rebalancer, remedies, replicas_syncer, returning, scale_target_marker, scheduling,
    services, statuses, taint_policies, templates, works,
};
use crate::Error;

type Tasks = JoinSet<Result<(), String>>;

fn spawn<K, L, R>(
    tasks: &mut Tasks,
    queue: &Queue<K>,
    workers: usize,
    stop: &CancellationToken,
    owner: &Arc<L>,
    reconcile: fn(Arc<L>, K) -> R,
) where
    K: Hash + Eq + Clone + Debug + Send + 'static,
    L: Send + Sync + 'static,
    R: Future<Output = Result<Outcome, Error>> + Send + 'static,
{
    if queue.is_closed() {
        return;
    }
    let owner = Arc::clone(owner);
    let (queue, stop) = (queue.clone(), stop.clone());
    tasks.spawn(queue.run(workers, stop, move |key| reconcile(Arc::clone(&owner), key)));
}

/// Runs every loop until they are to stop; tells when the first look is over, and when one ended by itself.
pub(super) async fn supervise(
    loops: Arc<Loops>,
    health: watch::Sender<Result<(), Unwell>>,
    stop: CancellationToken,
    (teller, writer): (Teller, impl Future<Output = ()> + Send + 'static),
    (journal, closing): (impl Future<Output = ()> + Send + 'static, CancellationToken),
) {
    let mut tasks: Tasks = JoinSet::new();
    let listener: Arc<dyn Listener> = Arc::<Loops>::clone(&loops);
    tasks.spawn(teller.run(listener, stop.clone()));
    let ending = stop.clone();
    tasks.spawn(async move {
        writer.await;
        if ending.is_cancelled() { Ok(()) } else { Err("the event recorder ended".to_owned()) }
    });
    let ending = closing.clone();
    tasks.spawn(async move {
        journal.await;
        if ending.is_cancelled() { Ok(()) } else { Err("the journal ended".to_owned()) }
    });
    loops.first_look(&stop).await;
    loops.works.recall().await;
    let l = &loops;
    let workers = &l.context.config.workers;
    let some = workers.others;
    spawn(&mut tasks, &l.clusters.lives, some, &stop, &l.clusters, clusters::Clusters::reconcile_life);
    let many = clusters::STATUS_WORKERS;
    spawn(&mut tasks, &l.clusters.statuses, many, &stop, &l.clusters, clusters::Clusters::reconcile_status);
    spawn(&mut tasks, &l.clusters.leases, some, &stop, &l.clusters, clusters::Clusters::reconcile_lease);
    spawn(&mut tasks, &l.namespaces.namespaces, some, &stop, &l.namespaces, namespaces::Namespaces::reconcile);
    spawn(&mut tasks, &l.access.clusters, some, &stop, &l.access, access::Access::reconcile);
    spawn(
        &mut tasks,
        &l.taint_policies.clusters,
        some,
        &stop,
        &l.taint_policies,
        taint_policies::TaintPolicies::reconcile,
    );
    spawn(&mut tasks, &l.remedies.clusters, some, &stop, &l.remedies, remedies::Remedies::reconcile);
    spawn(&mut tasks, &l.applications.bindings, some, &stop, &l.applications, applications::Applications::reconcile);
    spawn(&mut tasks, &l.exports.services, some, &stop, &l.exports, services::Exports::reconcile);
    spawn(&mut tasks, &l.slices.works, some, &stop, &l.slices, services::Slices::reconcile);
    spawn(&mut tasks, &l.imports.imports, some, &stop, &l.imports, services::Imports::reconcile);
    spawn(&mut tasks, &l.spanning.services, some, &stop, &l.spanning, services::Spanning::reconcile);
    spawn(&mut tasks, &l.ingresses.ingresses, some, &stop, &l.ingresses, services::Ingresses::reconcile);
    spawn(&mut tasks, &l.collecting.services, some, &stop, &l.collecting, services::Collecting::reconcile);
    spawn(&mut tasks, &l.quotas.quotas, some, &stop, &l.quotas, quotas::Quotas::reconcile);
    spawn(&mut tasks, &l.rebalancer.rebalancers, some, &stop, &l.rebalancer, rebalancer::Rebalancer::reconcile);
    spawn(&mut tasks, &l.autoscaling.autoscalers, some, &stop, &l.autoscaling, autoscaling::Federated::reconcile);
    spawn(&mut tasks, &l.cron_autoscaling.autoscalers, some, &stop, &l.cron_autoscaling, autoscaling::Cron::reconcile);
    spawn(
        &mut tasks,
        &l.scale_target_marker.targets,
        some,
        &stop,
        &l.scale_target_marker,
        scale_target_marker::ScaleTargetMarker::reconcile,
    );
    spawn(
        &mut tasks,
        &l.replicas_syncer.deployments,
        some,
        &stop,
        &l.replicas_syncer,
        replicas_syncer::ReplicasSyncer::reconcile,
    );
    spawn(&mut tasks, &l.certificates.requests, some, &stop, &l.certificates, certificates::Certificates::reconcile);
    spawn(&mut tasks, &l.templates.policies, some, &stop, &l.templates, templates::Templates::reconcile_policy);
    spawn(
        &mut tasks,
        &l.templates.templates,
        workers.templates,
        &stop,
        &l.templates,
        templates::Templates::reconcile_template,
    );
    spawn(
        &mut tasks,
        &l.scheduling.bindings,
        workers.scheduling,
        &stop,
        &l.scheduling,
        scheduling::Scheduling::reconcile,
    );
    spawn(&mut tasks, &l.distributor.parents, some, &stop, &l.distributor, distributor::Distributor::reconcile);
    spawn(&mut tasks, &l.bindings.bindings, workers.bindings, &stop, &l.bindings, bindings::Bindings::reconcile);
    spawn(&mut tasks, &l.works.works, workers.works, &stop, &l.works, works::Works::reconcile);
    spawn(&mut tasks, &l.statuses.bindings, workers.bindings, &stop, &l.statuses, statuses::Statuses::reconcile);
    spawn(&mut tasks, &l.evictions.bindings, workers.bindings, &stop, &l.evictions, evictions::Evictions::reconcile);
    spawn(&mut tasks, &l.evictions.halts, some, &stop, &l.evictions, evictions::Evictions::reconcile_halt);
    spawn(&mut tasks, &l.returning.bindings, some, &stop, &l.returning, returning::Returning::reconcile);
    tasks.spawn(Arc::clone(&l.clusters).follow_served(stop.clone()));
    let descheduling = &l.descheduling;
    spawn(&mut tasks, &descheduling.bindings, some, &stop, descheduling, descheduling::Descheduling::reconcile);
    if !descheduling.bindings.is_closed() {
        tasks.spawn(Arc::clone(descheduling).keep_looking(stop.clone()));
    }
    tasks.spawn(Arc::clone(&loops).keep_discovering(stop.clone()));
    tasks.spawn(Arc::clone(&loops).keep_passing(stop.clone()));
    if !stop.is_cancelled() {
        drop(health.send_replace(Ok(())));
    }
    loop {
        let ended = tokio::select! {
            ended = tasks.join_next() => ended,
            // The journal is the last: what the others noted is to be written.
            () = stop.cancelled(), if tasks.len() == 1 => {
                closing.cancel();
                tasks.join_next().await
            }
        };
        let Some(ended) = ended else { return };
        let reason = match ended {
            Ok(Ok(())) if stop.is_cancelled() => continue,
            Ok(Ok(())) => "a loop ended by itself".to_owned(),
            Ok(Err(reason)) => reason,
            Err(error) => format!("a loop died: {error}"),
        };
        tracing::error!(reason, "the controllers are not whole any more");
        drop(health.send_replace(Err(Unwell::Broken(reason))));
    }
}
