//! Properties of workloads: status, desired and ready replicas, images.

use super::PrintedObject;
use super::view::{CronJob, Job, Workload, add_conditions};

impl Workload<'_> {
    pub(super) fn print(self, kind: &str) -> PrintedObject {
        let status = &self.status;
        let daemon = kind == "DaemonSet";
        let desired = if daemon { status.desired_number_scheduled } else { self.spec.replicas.unwrap_or(1) };
        let ready = if daemon { status.number_ready } else { status.ready_replicas };
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
        let failing = status.conditions.iter().any(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        let state = match () {
            () if self.metadata.deletion_timestamp.is_some() => "Terminating",
            () if failing => "ReplicaFailure",
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
        let is = |type_: &str| status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
        let state = match () {
            () if self.metadata.deletion_timestamp.is_some() => "Terminating",
            () if is("Complete") => "Complete",
            () if is("Failed") => "Failed",
            () if is("Suspended") || self.spec.suspend => "Suspended",
            () if is("FailureTarget") => "FailureTarget",
            () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
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
