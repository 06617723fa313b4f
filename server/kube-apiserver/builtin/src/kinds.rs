//! Table of built-in kinds: the discovery entries of Kubernetes 1.36's generally available APIs.
//!
//! One line per resource: `plural Kind scope [shortNames] [categories] [verbs]`, with subresources indented below it
//! as `  name Kind verbs`. The scope is `ns` or `cluster`; `-` means none; the verbs `all` are all eight, `nodc` all
//! except deletecollection. The kind of a subresource may have a `group/version:` prefix.

/// Group, version, lines. Versions of a group are listed in order of preference.
pub(super) const KINDS: &[(&str, &str, &str)] = &[
    (
        "",
        "v1",
        "bindings Binding ns - - create
componentstatuses ComponentStatus cluster cs - get,list
configmaps ConfigMap ns cm - all
endpoints Endpoints ns ep - all
events Event ns ev - all
limitranges LimitRange ns limits - all
namespaces Namespace cluster ns - nodc
  finalize Namespace update
  status Namespace get,patch,update
nodes Node cluster no - all
  proxy NodeProxyOptions create,delete,get,patch,update
  status Node get,patch,update
persistentvolumeclaims PersistentVolumeClaim ns pvc - all
  status PersistentVolumeClaim get,patch,update
persistentvolumes PersistentVolume cluster pv - all
  status PersistentVolume get,patch,update
pods Pod ns po all all
  attach PodAttachOptions create,get
  binding Binding create
  ephemeralcontainers Pod get,patch,update
  eviction policy/v1:Eviction create
  exec PodExecOptions create,get
  log Pod get
  portforward PodPortForwardOptions create,get
  proxy PodProxyOptions create,delete,get,patch,update
  resize Pod get,patch,update
  status Pod get,patch,update
podtemplates PodTemplate ns - - all
replicationcontrollers ReplicationController ns rc all all
  scale autoscaling/v1:Scale get,patch,update
  status ReplicationController get,patch,update
resourcequotas ResourceQuota ns quota - all
  status ResourceQuota get,patch,update
secrets Secret ns - - all
serviceaccounts ServiceAccount ns sa - all
  token authentication.k8s.io/v1:TokenRequest create
services Service ns svc all all
  proxy ServiceProxyOptions create,delete,get,patch,update
  status Service get,patch,update",
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicies MutatingAdmissionPolicy cluster - api-extensions all
mutatingadmissionpolicybindings MutatingAdmissionPolicyBinding cluster - api-extensions all
mutatingwebhookconfigurations MutatingWebhookConfiguration cluster - api-extensions all
validatingadmissionpolicies ValidatingAdmissionPolicy cluster - api-extensions all
  status ValidatingAdmissionPolicy get,patch,update
validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding cluster - api-extensions all
validatingwebhookconfigurations ValidatingWebhookConfiguration cluster - api-extensions all",
    ),
    (
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions CustomResourceDefinition cluster crd,crds api-extensions all
  status CustomResourceDefinition get,patch,update",
    ),
    (
        "apiregistration.k8s.io",
        "v1",
        "apiservices APIService cluster - api-extensions all
  status APIService get,patch,update",
    ),
    (
        "apps",
        "v1",
        "controllerrevisions ControllerRevision ns - - all
daemonsets DaemonSet ns ds all all
  status DaemonSet get,patch,update
deployments Deployment ns deploy all all
  scale autoscaling/v1:Scale get,patch,update
  status Deployment get,patch,update
replicasets ReplicaSet ns rs all all
  scale autoscaling/v1:Scale get,patch,update
  status ReplicaSet get,patch,update
statefulsets StatefulSet ns sts all all
  scale autoscaling/v1:Scale get,patch,update
  status StatefulSet get,patch,update",
    ),
    (
        "authentication.k8s.io",
        "v1",
        "selfsubjectreviews SelfSubjectReview cluster - - create
tokenreviews TokenReview cluster - - create",
    ),
    (
        "authorization.k8s.io",
        "v1",
        "localsubjectaccessreviews LocalSubjectAccessReview ns - - create
selfsubjectaccessreviews SelfSubjectAccessReview cluster - - create
selfsubjectrulesreviews SelfSubjectRulesReview cluster - - create
subjectaccessreviews SubjectAccessReview cluster - - create",
    ),
    (
        "autoscaling",
        "v2",
        "horizontalpodautoscalers HorizontalPodAutoscaler ns hpa all all
  status HorizontalPodAutoscaler get,patch,update",
    ),
    (
        "autoscaling",
        "v1",
        "horizontalpodautoscalers HorizontalPodAutoscaler ns hpa all all
  status HorizontalPodAutoscaler get,patch,update",
    ),
    (
        "batch",
        "v1",
        "cronjobs CronJob ns cj all all
  status CronJob get,patch,update
jobs Job ns - all all
  status Job get,patch,update",
    ),
    (
        "certificates.k8s.io",
        "v1",
        "certificatesigningrequests CertificateSigningRequest cluster csr - all
  approval CertificateSigningRequest get,patch,update
  status CertificateSigningRequest get,patch,update",
    ),
    ("coordination.k8s.io", "v1", "leases Lease ns - - all"),
    ("discovery.k8s.io", "v1", "endpointslices EndpointSlice ns - - all"),
    ("events.k8s.io", "v1", "events Event ns ev - all"),
    (
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "flowschemas FlowSchema cluster - - all
  status FlowSchema get,patch,update
prioritylevelconfigurations PriorityLevelConfiguration cluster - - all
  status PriorityLevelConfiguration get,patch,update",
    ),
    (
        "networking.k8s.io",
        "v1",
        "ingressclasses IngressClass cluster - - all
ingresses Ingress ns ing - all
  status Ingress get,patch,update
ipaddresses IPAddress cluster ip - all
networkpolicies NetworkPolicy ns netpol - all
servicecidrs ServiceCIDR cluster - - all
  status ServiceCIDR get,patch,update",
    ),
    ("node.k8s.io", "v1", "runtimeclasses RuntimeClass cluster - - all"),
    (
        "policy",
        "v1",
        "poddisruptionbudgets PodDisruptionBudget ns pdb - all
  status PodDisruptionBudget get,patch,update",
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "clusterrolebindings ClusterRoleBinding cluster - - all
clusterroles ClusterRole cluster - - all
rolebindings RoleBinding ns - - all
roles Role ns - - all",
    ),
    ("scheduling.k8s.io", "v1", "priorityclasses PriorityClass cluster pc - all"),
    (
        "storage.k8s.io",
        "v1",
        "csidrivers CSIDriver cluster - - all
csinodes CSINode cluster - - all
csistoragecapacities CSIStorageCapacity ns - - all
storageclasses StorageClass cluster sc - all
volumeattachments VolumeAttachment cluster - - all
  status VolumeAttachment get,patch,update
volumeattributesclasses VolumeAttributesClass cluster vac - all",
    ),
];
