//! Properties of workloads: status, desired and ready replicas, images.

use super::PrintedObject;
use super::view::{CronJob, Job, Workload, add_conditions};

impl Workload<'_> {
    pub(super) fn print(self, kind: &str) -> PrintedObject {
        let status = &self.status;
        let is_daemon_set = kind == "DaemonSet";
        let desired = if is_daemon_set { status.desired_number_scheduled } else { self.spec.replicas.unwrap_or(1) };
        let ready = if is_daemon_set { status.number_ready } else { status.ready_replicas };
        let mut printed = PrintedObject {
            ready: Some(ready),
            desired: Some(desired),
            images: self.spec.template.spec.images(),
            ..PrintedObject::default()
        };
        if kind == "ReplicationController" {
            printed.fields = vec![("status.replicas".to_owned(), status.replicas.to_string())];
        }
        add_conditions(&status.conditions, &mut printed);
        let is_failing = status.conditions.iter().any(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        let state = match () {
            () if self.metadata.deletion_timestamp.is_some() => "Terminating",
            () if is_failing => "ReplicaFailure",
            () if ready >= desired => "Ready",
            () => "NotReady",
        };
        printed.status = Some(state.to_owned());
        printed
    }
}

impl Job<'_> {
    pub(super) fn print(self) -> PrintedObject {
        let status = &self.status;
        let mut printed = PrintedObject {
            ready: Some(status.succeeded),
            desired: self.spec.completions.or(self.spec.parallelism),
            images: self.spec.template.spec.images(),
            ..PrintedObject::default()
        };
        add_conditions(&status.conditions, &mut printed);
        let has_condition = |type_: &str| status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
        let state = match () {
            () if self.metadata.deletion_timestamp.is_some() => "Terminating",
            () if has_condition("Complete") => "Complete",
            () if has_condition("Failed") => "Failed",
            () if has_condition("Suspended") || self.spec.suspend => "Suspended",
            () if has_condition("FailureTarget") => "FailureTarget",
            () if has_condition("SuccessCriteriaMet") => "SuccessCriteriaMet",
            () => "Running",
        };
        printed.status = Some(state.to_owned());
        printed
    }
}

impl CronJob<'_> {
    pub(super) fn print(self) -> PrintedObject {
        let template = &self.spec.job_template.spec.template;
        let status = if self.spec.suspend { "Suspended" } else { "Active" };
        PrintedObject { status: Some(status.to_owned()), images: template.spec.images(), ..PrintedObject::default() }
    }
}
