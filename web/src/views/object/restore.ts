// The object that results from restoring an earlier version. Has no side effects.
import type { KubeObject } from '../../api/types'

/** Fields of metadata that identify or describe the stored object, not its content. */
const SERVER_FIELDS = ['uid', 'resourceVersion', 'generation', 'creationTimestamp', 'deletionTimestamp', 'deletionGracePeriodSeconds', 'selfLink', 'managedFields', 'ownerReferences', 'finalizers'] as const

/**
 * Returns the current object with the labels and the content of a version. Annotations and other metadata are kept, because the cache does not
 * contain all of them. Without a current object, returns the version as a new object, with the metadata that a user can set.
 */
export function restoreVersion(current: KubeObject | undefined, version: KubeObject): KubeObject {
  const { status: _status, metadata, ...content } = version
  if (!current) {
    const userMetadata = Object.fromEntries(Object.entries(metadata).filter(([name]) => !(SERVER_FIELDS as readonly string[]).includes(name)))
    return { ...content, metadata: userMetadata } as unknown as KubeObject
  }
  const { labels: _labels, managedFields: _managed, ...currentMetadata } = current.metadata
  return {
    ...content,
    apiVersion: current.apiVersion,
    kind: current.kind,
    metadata: { ...currentMetadata, ...(metadata.labels && { labels: metadata.labels }) },
    ...(current.status !== undefined && { status: current.status }),
  } as unknown as KubeObject
}
