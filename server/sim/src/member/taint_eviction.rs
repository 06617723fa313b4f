//! Taint eviction: deletes pods from nodes with `NoExecute` taints when their tolerations run out, as Kubernetes'
//! taint-eviction controller does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::taints::{NO_EXECUTE, toleration_seconds};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use parking_lot::Mutex;

use super::context::MemberContext;
use super::pod::PodState;
use super::queue::{self, Queue};
use super::recorder::{Source, Subject};
use super::store::{Index, Key, StoreObject};
use crate::error::Result;

const SOURCE: Source = Source { component: "taint-eviction-controller", host: None };
/// Maximum number of pods that are processed concurrently.
const MAX_CONCURRENT_PODS: usize = 8;

/// Pods on nodes with `NoExecute` taints that have not been evicted: UID, and the time at which the controller first
/// saw this.
#[derive(Default)]
struct TaintedPods(Mutex<HashMap<Key, (Arc<str>, Timestamp)>>);

impl TaintedPods {
    /// Time at which the controller first saw the pod on a tainted node; `now` at the first call.
    fn first_seen(&self, key: &Key, uid: &Arc<str>, now: Timestamp) -> Timestamp {
        let mut pods = self.0.lock();
        let (recorded_uid, first_seen) = pods.entry(key.clone()).or_insert_with(|| (uid.clone(), now));
        if recorded_uid != uid {
            (*recorded_uid, *first_seen) = (uid.clone(), now);
        }
        *first_seen
    }

    fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// Starts the controller.
pub fn start(context: &Arc<MemberContext>) {
    let (queue, tainted) = (Arc::new(Queue::<Key>::default()), Arc::new(TaintedPods::default()));
    let (node_queue, tainted_pods, weak_context) = (queue.clone(), tainted.clone(), Arc::downgrade(context));
    context.nodes.on_change(move |old, new| {
        let (Some(node), Some(context)) = (new, weak_context.upgrade()) else { return };
        let taints = no_execute_taints(node);
        if old.map(|old| no_execute_taints(old)).unwrap_or_default() == taints {
            return;
        }
        for pod in context.pods.by_index(&Index::Node(node.key().name)) {
            match taints.is_empty() {
                true => tainted_pods.forget(&pod.key),
                false => node_queue.add(pod.key.clone()),
            }
        }
    });
    let (pod_queue, weak_context) = (queue.clone(), Arc::downgrade(context));
    context.pods.on_change(move |old, new| {
        let (Some(pod), Some(context)) = (new, weak_context.upgrade()) else { return };
        let Some(name) = pod.node.as_ref().filter(|_| old.is_none_or(|old| old.node.is_none())) else { return };
        if context.nodes.get(&Key::new("", name)).is_some_and(|node| !no_execute_taints(&node).is_empty()) {
            pod_queue.add(pod.key.clone());
        }
    });
    let (task_context, stop) = (context.clone(), context.stop.clone());
    context.spawn_when_synced("taint eviction", async move {
        queue::run("taint-eviction", queue, MAX_CONCURRENT_PODS, stop, |key| evict(&task_context, &tainted, key)).await;
    });
}

fn no_execute_taints(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|taint| taint.effect == NO_EXECUTE).cloned().collect()
}

/// A pod that is not being deleted, with the `NoExecute` taints of its node; `None` if there are none.
fn pod_and_taints(context: &MemberContext, key: &Key) -> Option<(Arc<PodState>, Vec<Taint>)> {
    let pod = context.pods.get(key).filter(|pod| pod.deletion.is_none())?;
    let node = context.nodes.get(&Key::new("", pod.node.as_ref()?))?;
    Some((pod, no_execute_taints(&node))).filter(|(_, taints)| !taints.is_empty())
}

/// Evicts a pod from a tainted node if its tolerations have run out; otherwise returns the time until then.
async fn evict(context: &MemberContext, tainted: &TaintedPods, key: Key) -> Result<Option<Duration>> {
    let Some((pod, taints)) = pod_and_taints(context, &key) else {
        tainted.forget(&key);
        return Ok(None);
    };
    let now = Timestamp::now();
    let first_seen = tainted.first_seen(&key, &pod.uid, now);
    match time_to_eviction(&taints, &pod.spec.tolerations, first_seen, now) {
        Some(Duration::ZERO) => {}
        Some(wait) => return Ok(Some(wait)),
        None => {
            tainted.forget(&key);
            return Ok(None);
        }
    }
    let message = format!("Marking for deletion Pod {key}");
    context.recorder.record(Subject::pod(&key, &pod.uid), SOURCE, false, "TaintManagerEviction", message);
    context.delete_pod(&key, &pod.uid, None).await?;
    tainted.forget(&key);
    Ok(None)
}

/// Time until a pod is evicted; `None` if it is not evicted. The newest of several taints counts. A taint without
/// `timeAdded`, such as one of `kubectl taint`, counts from `first_seen`, the time at which the controller first saw
/// the pod on the tainted node.
fn time_to_eviction(
    taints: &[Taint],
    tolerations: &[Toleration],
    first_seen: Timestamp,
    now: Timestamp,
) -> Option<Duration> {
    let Some(tolerated_seconds) = toleration_seconds(taints, tolerations) else { return Some(Duration::ZERO) };
    let since = taints.iter().map(|taint| taint.time_added.as_ref().map_or(first_seen, |added| added.0)).max();
    // A time beyond the range of timestamps is never reached.
    let end = since.unwrap_or(first_seen).checked_add(SignedDuration::from_secs(tolerated_seconds?)).ok()?;
    Some(Duration::try_from(end.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn taint(added: Option<i64>) -> Value {
        json!({"key": "maintenance", "effect": "NoExecute", "timeAdded": added.map(|second| at(second).to_string())})
    }

    #[rstest::rstest]
    #[case::untolerated(json!([taint(None)]), json!([]), 100, Some(0))]
    #[case::forever(json!([taint(None)]), json!([{"operator": "Exists"}]), 100, None)]
    #[case::too_long(json!([taint(None)]), json!([{"operator": "Exists", "tolerationSeconds": i64::MAX}]), 100, None)]
    #[case::without_time(json!([taint(None)]), json!([{"operator": "Exists", "tolerationSeconds": 30}]), 110, Some(20))]
    #[case::without_time_expired(json!([taint(None)]), json!([{"operator": "Exists", "tolerationSeconds": 30}]), 130, Some(0))]
    #[case::with_time(json!([taint(Some(90))]), json!([{"operator": "Exists", "tolerationSeconds": 30}]), 110, Some(10))]
    #[case::with_time_expired(json!([taint(Some(50))]), json!([{"operator": "Exists", "tolerationSeconds": 30}]), 110, Some(0))]
    #[case::newest(json!([taint(Some(50)), taint(None)]), json!([{"operator": "Exists", "tolerationSeconds": 30}]), 110, Some(20))]
    fn pods_are_evicted_when_their_toleration_seconds_have_passed(
        #[case] taints: Value,
        #[case] tolerations: Value,
        #[case] now: i64,
        #[case] expected: Option<u64>,
    ) {
        let taints: Vec<Taint> = serde_json::from_value(taints).unwrap();
        let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).unwrap();
        let wait = time_to_eviction(&taints, &tolerations, at(100), at(now));
        assert_eq!(wait, expected.map(Duration::from_secs));
    }

    #[test]
    fn the_time_at_which_a_pod_was_first_seen_is_kept_until_its_taints_are_removed() {
        let (pods, key) = (TaintedPods::default(), Key::new("shop", "web"));
        let first_seen = |uid: &str, second: i64| pods.first_seen(&key, &uid.into(), at(second)).as_second();
        assert_eq!([first_seen("a", 100), first_seen("a", 110)], [100, 100]);
        assert_eq!(first_seen("b", 120), 120, "another pod of the same name");
        pods.forget(&key);
        assert_eq!(first_seen("b", 130), 130, "its taints were removed in between");
    }
}
