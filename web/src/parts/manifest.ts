// Parses manifests, and locates fields in their text.
import { isMap, isScalar, isSeq } from 'yaml'
import type { KubeObject } from '../api/types'
import { parseAllYaml, type ParsedDocument, type Problem } from './yaml'

export interface Manifest extends Pick<ParsedDocument, 'document'> {
  object: KubeObject
  /** Range of the document in the text, in characters. */
  from: number
  to: number
}

export interface ParsedManifests {
  manifests: Manifest[]
  /** Errors in YAML syntax. */
  problems: Problem[]
  /** Positions of documents that are not mappings. */
  nonObjects: Pick<Problem, 'from' | 'to'>[]
}

/** Parses all YAML documents of a text. */
export function parseManifests(text: string): ParsedManifests {
  const result: ParsedManifests = { manifests: [], problems: [], nonObjects: [] }
  for (const { document, value, problems } of parseAllYaml(text)) {
    const [from = 0, , to = text.length] = document.range ?? []
    result.problems.push(...problems)
    if (isMap(document.contents) && problems.length === 0) result.manifests.push({ object: value as KubeObject, document, from, to })
    else if (problems.length === 0) result.nonObjects.push(rangeOf(document.contents) ?? { from, to })
  }
  return result
}

/** Splits a field path of a Kubernetes error: `spec.containers[0].image`, `metadata.labels[app.kubernetes.io/name]`. */
export function splitPath(path: string): (string | number)[] {
  const elements: (string | number)[] = []
  for (const [, name, inner] of path.matchAll(/([^.[\]]+)|\[([^\]]*)\]/g)) {
    if (name !== undefined) elements.push(name)
    else if (inner !== undefined) elements.push(/^\d+$/.test(inner) ? Number(inner) : inner.replace(/^"(.*)"$/, '$1'))
  }
  return elements
}

/** Position of a field in the text; for an absent field, the position of its closest parent. */
export function locate({ document, from, to }: Manifest, path: string): { from: number; to: number } {
  let node: unknown = document.contents
  let range = { from, to: Math.min(to, from + 1) }
  for (const step of splitPath(path)) {
    if (isMap(node)) {
      const pair = node.items.find(({ key }) => isScalar(key) && String(key.value) === String(step))
      if (!pair) break
      range = rangeOf(pair.key) ?? range
      node = pair.value
    } else if (isSeq(node) && typeof step === 'number' && node.items[step] !== undefined) {
      node = node.items[step]
      range = rangeOf(node) ?? range
    } else if (isSeq(node) && typeof step === 'string' && step.includes('=')) {
      const item = itemOf(node.items, step)
      if (!item) break
      node = item
      range = rangeOf(item) ?? range
    } else break
  }
  // The value itself, if it is on one line.
  return isScalar(node) ? (rangeOf(node) ?? range) : range
}

/** The list item with these keys: `containerPort=80,protocol="TCP"`. */
function itemOf(items: unknown[], keys: string): unknown {
  const expected = keys.split(',').map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1).replace(/^"(.*)"$/, '$1')] as const)
  return items.find((item) => isMap(item) && expected.every(([key, value]) => String(item.get(key)) === value))
}

function rangeOf(node: unknown): { from: number; to: number } | undefined {
  const range = (node as { range?: [number, number, number] } | null)?.range
  return range ? { from: range[0], to: range[1] } : undefined
}

/** Removes fields that API servers add; `version` keeps the resourceVersion. */
export function withoutServerFields<T extends KubeObject>(object: T, { version }: { version: boolean }): T {
  const { managedFields: _m, uid: _u, creationTimestamp: _c, generation: _g, resourceVersion, ...metadata } = object.metadata
  const { status: _s, ...rest } = object
  const annotations = Object.fromEntries(Object.entries(metadata.annotations ?? {}).filter(([key]) => key !== 'resource.karmada.io/cached-from-cluster'))
  delete metadata.annotations
  return {
    ...rest,
    metadata: { ...metadata, ...(Object.keys(annotations).length > 0 && { annotations }), ...(version && resourceVersion && { resourceVersion }) },
  } as unknown as T
}
