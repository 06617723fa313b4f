//! The life of pods on simulated nodes: what a kubelet would report, decided by a pure step and carried out by [`run`].
//!
//! Commands that the kubelet's shell knows are run ([`crowsnest_kubelet::process`]): a container ends when and as its command does.
//! Any other program is taken to run on, and to be ready at once, or as early as its probes allow; one that a Job's container names
//! ends well after a second. Init containers end at once unless their commands take longer. Images whose tag or registry says that
//! there is none ([`crowsnest_kubelet::image::pull_error`]) cannot be pulled. A deleted pod goes away.
//! Annotations on the pod (so: on the workload's pod template) ask for something else:
//!
//! | annotation | value | meaning |
//! |---|---|---|
//! | `fleet.test/phase` | `NotReady`, `Failed`, `Pending` | the pod is put in that state instead |
//! | `sim.crowsnest.io/start-after` | duration (`5s`) | ContainerCreating until then |
//! | `sim.crowsnest.io/ready-after` | duration | runs that long before it is ready |
//! | `sim.crowsnest.io/run-for` | duration | its containers end after running that long |
//! | `sim.crowsnest.io/exit-code` | integer | how they end (default 0) |
//! | `sim.crowsnest.io/crash` | `true`, or how many times | they end with code 1 a second after each start |
//! | `sim.crowsnest.io/oom` | `true`, or how many times | as crash, but OOMKilled (137) |
//! | `sim.crowsnest.io/pull-error` | text | the image cannot be pulled: ErrImagePull, ImagePullBackOff |
//! | `sim.crowsnest.io/stop-after` | duration | termination takes that long, at most the grace period |
//! | `sim.crowsnest.io/container` | name | the above concern this container only |
//! | `sim.crowsnest.io/cpu`, `/memory` | quantity | usage reported to metrics.k8s.io, per pod |
//!
//! State is kept in the pod's status. After a restart of the member, processes are replayed and files are lost.

mod admission;
mod behaviour;
mod container;
mod run;
mod status;
mod step;

pub use behaviour::{Behaviour, usage};
pub use container::Observations;
pub use run::{PodIps, host_ip, start};
pub use status::{container_id, image_id, image_name, status, time};
pub use step::{Desired, Note, Step, step};

/// Prefix of the simulation's own annotations.
pub const PREFIX: &str = "sim.crowsnest.io/";
