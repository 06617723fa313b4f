//! Synthetic pods as in a busy cluster: equal within an application except for the fields that differ in every pod.
//!
//! Has no side effects: a pod is a function of its index and revision, so millions of pods need no memory.

use std::fmt::Write;

/// Approximate number of pods per application; they share images, environment and probes.
const PODS_PER_APP: usize = 50;
pub(super) const NAMESPACES: usize = 50;
/// Approximate size of the JSON that all pods share, in bytes.
const SHARED_BYTES: usize = 4_600;

/// Annotation with the time of the last change in Unix microseconds.
pub(super) const CHANGED_AT: &str = "bench.crowsnest.io/changed-at";

/// The pods of one cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pods {
    /// Number of pods in all clusters; determines the applications.
    pub fleet_pods: usize,
    /// Approximate size of a pod's JSON in bytes.
    pub bytes: usize,
}

/// A deterministic pseudo-random number generator.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn from_seed(seed: usize) -> Self {
        Self((seed as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Last change of a pod.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Revision {
    pub number: u32,
    pub changed_at: i64,
}

pub(super) fn namespace(nth: usize) -> String {
    format!("team-{}", nth % NAMESPACES)
}

impl Pods {
    /// Number of applications.
    pub(super) fn apps(self) -> usize {
        (self.fleet_pods / PODS_PER_APP).max(7)
    }

    pub(super) fn app(self, nth: usize) -> usize {
        // Neighbouring pods belong to different applications; a namespace has several.
        nth % self.apps()
    }

    /// Name and uid of the ReplicaSet of an application.
    pub(super) fn replica_set(self, app: usize) -> (String, String) {
        let mut shared = RandomNumbers::from_seed(app ^ 0x5bd1_e995);
        let hash = shared.next() as u32;
        (format!("app-{app}-{hash:x}"), uid(&mut shared))
    }

    pub(super) fn name(self, nth: usize) -> String {
        let (app, mut own) = (self.app(nth), RandomNumbers::from_seed(nth));
        let hash = RandomNumbers::from_seed(app ^ 0x5bd1_e995).next() as u32;
        uid(&mut own);
        format!("app-{app}-{hash:x}-{}", letters(own.next()))
    }

    /// Writes the pod as JSON on one line.
    pub(super) fn write(self, out: &mut String, nth: usize, resource_version: u64, revision: Revision) {
        let (app, mut own) = (self.app(nth), RandomNumbers::from_seed(nth));
        let mut shared = RandomNumbers::from_seed(app ^ 0x5bd1_e995);
        let (own_uid, hash) = (uid(&mut own), format!("{:x}", shared.next() as u32));
        let (owner, ready) = (uid(&mut shared), !nth.is_multiple_of(50));
        let (suffix, volume) = (letters(own.next()), letters(own.next()));
        let (container, image) = (digest(&mut own), digest(&mut shared));
        let restarts = if ready { u64::from(revision.number) } else { 7 + u64::from(revision.number) };
        let state = match ready {
            true => r#"{"running":{"startedAt":"2026-09-21T10:00:05Z"}}"#,
            false => {
                r#"{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 5m0s restarting failed container=main"}}"#
            }
        };
        let ip = format!("10.{}.{}.{}", nth >> 16 & 255, nth >> 8 & 255, nth & 255);
        let ready_status = if ready { "True" } else { "False" };
        let (team, node, tag, tier) = (namespace(nth), nth % 500, app % 20, app % 3);
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"app-{app}-{hash}-{suffix}","generateName":"app-{app}-{hash}-","namespace":"{team}","uid":"{own_uid}","resourceVersion":"{resource_version}","creationTimestamp":"2026-09-21T10:00:00Z","labels":{{"app":"app-{app}","tier":"t{tier}","pod-template-hash":"{hash}"}},"annotations":{{"{CHANGED_AT}":"{}","kubectl.kubernetes.io/restartedAt":"2026-09-20T08:00:00Z"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"app-{app}-{hash}","uid":"{owner}","controller":true,"blockOwnerDeletion":true}}],"managedFields":[{MANAGED_FIELDS}]}},"#,
            revision.changed_at
        );
        let _ = write!(
            out,
            r#""spec":{{"volumes":[{{"name":"kube-api-access-{volume}","projected":{{"sources":[{{"serviceAccountToken":{{"expirationSeconds":3607,"path":"token"}}}},{{"configMap":{{"name":"kube-root-ca.crt","items":[{{"key":"ca.crt","path":"ca.crt"}}]}}}}],"defaultMode":420}}}},{{"name":"settings","configMap":{{"name":"app-{app}-settings","defaultMode":420}}}}],"containers":[{{"name":"main","image":"registry.example/team/app-{app}:1.{tag}","ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],"env":["#,
        );
        self.write_environment(out, app, &mut shared);
        let _ = write!(
            out,
            r#"],"resources":{{"limits":{{"memory":"256Mi"}},"requests":{{"cpu":"100m","memory":"128Mi"}}}},"volumeMounts":[{{"name":"settings","readOnly":true,"mountPath":"/etc/app"}},{{"name":"kube-api-access-{volume}","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}],{PROBES}"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","serviceAccount":"default","nodeName":"node-{node}","securityContext":{{}},"schedulerName":"default-scheduler",{TOLERATIONS}"priority":0,"enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority"}},"#,
        );
        let _ = write!(
            out,
            r#""status":{{"phase":"Running","conditions":[{{"type":"Initialized","status":"True","lastTransitionTime":"2026-09-21T10:00:00Z"}},{{"type":"Ready","status":"{ready_status}","lastTransitionTime":"2026-09-21T10:00:06Z"}},{{"type":"ContainersReady","status":"{ready_status}","lastTransitionTime":"2026-09-21T10:00:06Z"}},{{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-09-21T10:00:00Z"}}],"hostIP":"192.168.{}.{}","podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}],"startTime":"2026-09-21T10:00:00Z","containerStatuses":[{{"name":"main","state":{state},"lastState":{{}},"ready":{ready},"restartCount":{restarts},"image":"registry.example/team/app-{app}:1.{tag}","imageID":"registry.example/team/app-{app}@sha256:{image}","containerID":"containerd://{container}","started":{ready}}}],"qosClass":"Burstable"}}}}"#,
            node >> 8,
            node & 255,
        );
    }

    /// Writes environment variables, which the pods of an application share, until the pod has its size. They are most of
    /// the text, so they are written without `format_args!`, which would take most of the time of a pod.
    fn write_environment(self, out: &mut String, app: usize, shared: &mut RandomNumbers) {
        let end = out.len() + self.bytes.saturating_sub(SHARED_BYTES);
        let (suffix, mut number) = (format!(" of app-{app}, token "), String::new());
        for n in 0.. {
            if out.len() >= end {
                break;
            }
            if n > 0 {
                out.push(',');
            }
            number.clear();
            // Writing to a String cannot fail.
            let _ = write!(number, "{n}");
            for part in [r#"{"name":"SETTING_"#, &number, r#"","value":"setting "#, &number, &suffix] {
                out.push_str(part);
            }
            push_hexadecimal(out, shared.next());
            out.push_str(r#""}"#);
        }
    }
}

/// Appends the 16 hexadecimal digits of a number.
fn push_hexadecimal(out: &mut String, number: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend((0..16).rev().map(|digit| char::from(DIGITS[(number >> (4 * digit) & 15) as usize])));
}

fn uid(numbers: &mut RandomNumbers) -> String {
    let (a, b) = (numbers.next(), numbers.next());
    format!("{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}", a as u32, a >> 32 & 0xffff, a >> 48 & 0xfff, b & 0xfff, b >> 16)
}

fn digest(numbers: &mut RandomNumbers) -> String {
    (0..4).map(|_| format!("{:016x}", numbers.next())).collect()
}

/// Five letters as in generated names.
fn letters(mut number: u64) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut text = String::with_capacity(5);
    for _ in 0..5 {
        text.push(LETTERS[(number % LETTERS.len() as u64) as usize] as char);
        number /= LETTERS.len() as u64;
    }
    text
}

const PROBES: &str = r#""livenessProbe":{"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"},"initialDelaySeconds":5,"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"readinessProbe":{"httpGet":{"path":"/ready","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"#;
const TOLERATIONS: &str = r#""tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],"#;
const MANAGED_FIELDS: &str = r#"{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"2026-09-21T10:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{},"f:tier":{}},"f:ownerReferences":{".":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:env":{".":{}},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:ports":{".":{}},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}}}},"f:dnsPolicy":{},"f:restartPolicy":{},"f:schedulerName":{}}}},{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-09-21T10:00:06Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:startTime":{}}},"subresource":"status"}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_sixteen_digits() {
        for number in [0, 0x12ab, u64::MAX] {
            let mut text = String::new();
            push_hexadecimal(&mut text, number);
            assert_eq!(text, format!("{number:016x}"));
        }
    }

    #[test]
    fn pods_are_json_of_the_requested_size() {
        let pods = Pods { fleet_pods: 30_000, bytes: 9_500 };
        for nth in [0, 1, 29_999] {
            let mut text = String::new();
            pods.write(&mut text, nth, 7, Revision { number: 3, changed_at: 12 });
            let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_str(&text).unwrap();
            assert_eq!(pod.metadata.resource_version.as_deref(), Some("7"));
            assert_eq!(pod.metadata.annotations.unwrap()[CHANGED_AT], "12");
            assert_eq!(pod.metadata.name.as_deref(), Some(&*pods.name(nth)));
            assert!((9_000..10_000).contains(&text.len()), "{}", text.len());
        }
    }
}
