//! Life cycle of pods on simulated nodes: the status that a kubelet would report. A pure function computes the next
//! step of a pod; [`run`] applies it.
//!
//! Commands that the kubelet's shell supports are run ([`crowsnest_kubelet::process`]): their container ends with
//! them and with their exit code. Other programs run indefinitely and are ready at once, or as soon as their probes
//! allow. In containers of a Job they succeed after a second. Init containers complete at once unless their commands
//! take longer. Images whose tag or registry indicates that they do not exist
//! ([`crowsnest_kubelet::image::pull_error`]) cannot be pulled. Deleted pods terminate.
//!
//! Annotations on the pod (on the workload's pod template) change this behaviour:
//!
//! | annotation | value | meaning |
//! |---|---|---|
//! | `fleet.test/phase` | `NotReady`, `Failed`, `Pending` | forces this state |
//! | `sim.crowsnest.io/start-after` | duration (`5s`) | time in ContainerCreating |
//! | `sim.crowsnest.io/ready-after` | duration | run time before the containers are ready |
//! | `sim.crowsnest.io/run-for` | duration | run time after which the containers end |
//! | `sim.crowsnest.io/exit-code` | integer | exit code of these containers (default 0) |
//! | `sim.crowsnest.io/crash` | `true` or a count | containers exit with code 1 a second after each start |
//! | `sim.crowsnest.io/oom` | `true` or a count | like `crash`, but OOMKilled (137) |
//! | `sim.crowsnest.io/pull-error` | text | the image cannot be pulled: ErrImagePull, ImagePullBackOff |
//! | `sim.crowsnest.io/stop-after` | duration | duration of the termination, at most the grace period |
//! | `sim.crowsnest.io/container` | name | applies the above to this container only |
//! | `sim.crowsnest.io/cpu`, `/memory` | quantity | usage reported to metrics.k8s.io, per pod |
//!
//! State is kept in the pod's status. After a restart of the member, commands are run again and files are lost.

mod admission;
mod behaviour;
mod container;
mod run;
mod status;
mod step;

pub use behaviour::{Behaviour, annotated_usage};
pub use container::Observations;
pub use run::{PodIps, host_ip, start};
pub use status::{container_id, format_time, image_id, image_name, status_patch};
pub use step::{DesiredStatus, PodEvent, Step, compute_step};

/// Prefix of the simulation's own annotations.
pub const ANNOTATION_PREFIX: &str = "sim.crowsnest.io/";
