import { Link } from 'wouter'
import { objectAddress, searchAddress } from '../../api/address'
import { CONTROL_PLANE, isKind, type ObjectRef, qualifiedName } from '../../api/client'
import { involvedAddress, involvedObjectOf } from '../../api/involved'
import { canHaveJournal } from '../../api/journal'
import { resourceOf } from '../../api/kinds'
import type { KubeObject } from '../../api/types'
import { ClusterName } from '../../parts/ClusterName'
import { formatAgeSince } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { factsOf, dataKeys, objectOfField, type Condition, type Container, type Port } from './facts'

/** Overview tab: important fields, conditions, containers, ports, labels and annotations of an object. */
export function Overview({ objectRef, object }: { objectRef: ObjectRef; object: KubeObject }) {
  const t = useTextOf(texts)
  const { conditions, containers, ports, fields } = factsOf(object)
  const { labels = {}, annotations = {}, finalizers = [], ownerReferences = [] } = object.metadata
  const data = dataKeys(object)
  const involved = involvedObjectOf(object)
  const involvedHref = involved && involvedAddress(objectRef.cluster, involved)
  const involvedName = involved && `${involved.kind ?? ''} ${involved.namespace ? `${involved.namespace}/` : ''}${involved.name ?? ''}`.trim()
  return (
    <div className="overview">
      {object.metadata.deletionTimestamp && <p role="alert">{t.beingDeleted(formatAgeSince(object.metadata.deletionTimestamp))}</p>}
      <Managed objectRef={objectRef} object={object} />
      <dl className="facts">
        {fields.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <FieldValue objectRef={objectRef} name={name} value={value} />
            </dd>
          </div>
        ))}
        {involved && (
          <div>
            <dt>{t.about}</dt>
            <dd>{involvedHref === undefined ? involvedName : <Link href={involvedHref}>{involvedName}</Link>}</dd>
          </div>
        )}
        {ownerReferences.map((owner) => {
          const resource = resourceOf(owner.apiVersion, owner.kind)
          const owned = { cluster: objectRef.cluster, apiVersion: owner.apiVersion, namespace: isKind(owner, '', 'Node') ? undefined : objectRef.namespace, name: owner.name }
          const q = `kind:${qualifiedName(owner.kind, owner.apiVersion)} name:=${owner.name} cluster:=${objectRef.cluster}`
          return (
            <div key={`${owner.kind}/${owner.name}`}>
              <dt>{t.owner}</dt>
              <dd>
                <Link href={resource ? objectAddress({ ...owned, resource }) : searchAddress({ q })}>
                  {owner.kind} {owner.name}
                </Link>
              </dd>
            </div>
          )
        })}
        {finalizers.length > 0 && (
          <div>
            <dt>{t.finalizers}</dt>
            <dd>{finalizers.join(', ')}</dd>
          </div>
        )}
        {data.length > 0 && (
          <div>
            <dt>{t.keysOfData}</dt>
            <dd>{data.join(', ')}</dd>
          </div>
        )}
      </dl>
      {conditions.length > 0 && <Conditions conditions={conditions} />}
      {containers.length > 0 && <Containers containers={containers} />}
      {ports.length > 0 && <Ports ports={ports} />}
      <h2>{t.labels}</h2>
      {Object.keys(labels).length === 0 && <p className="empty">{t.none}</p>}
      <ul className="labels">
        {Object.entries(labels).map(([key, value]) => (
          <li key={key}>
            <Link href={searchAddress({ q: `label:${key}=${value}` })} title={t.searchLabel}>
              {key}={value}
            </Link>
          </li>
        ))}
      </ul>
      {Object.keys(annotations).length > 0 && (
        <details>
          <summary>{t.annotations(Object.keys(annotations).length)}</summary>
          <dl className="annotations">
            {Object.entries(annotations).map(([key, value]) => (
              <div key={key}>
                <dt>{key}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </div>
  )
}

/** The value of a field, as a link if it names an object. */
function FieldValue({ objectRef, name, value }: { objectRef: ObjectRef; name: string; value: string }) {
  const named = objectOfField(objectRef, name, value)
  return named ? <Link href={objectAddress(named)}>{value}</Link> : value
}

/** True for a copy that is propagated from a template. */
export const isManaged = (objectRef: ObjectRef, object: KubeObject) =>
  objectRef.cluster !== CONTROL_PLANE && canHaveJournal(objectRef, object)

/** Notice that changes of a propagated copy are reverted, with a link to its template. */
export function Managed({ objectRef, object }: { objectRef: ObjectRef; object: KubeObject }) {
  const t = useTextOf(texts)
  if (!isManaged(objectRef, object)) return null
  return (
    <p className="notice managed">
      {t.managed}{' '}
      <Link href={objectAddress({ ...objectRef, cluster: CONTROL_PLANE })}>
        {t.template} <ClusterName name={CONTROL_PLANE} />
      </Link>
    </p>
  )
}

function Conditions({ conditions }: { conditions: Condition[] }) {
  const t = useTextOf(texts)
  return (
    <Table caption label={t.conditions} headers={t.conditionColumns}>
      {conditions.map(({ type, status, good, reason, message, since: from }) => (
        <tr key={type}>
          <th scope="row">{type}</th>
          <td>
            <Pill state={status} tone={good === undefined ? 'warn' : good ? 'good' : 'bad'} />
          </td>
          <td>{reason}</td>
          <td>{message}</td>
          <td title={from}>{formatAgeSince(from)}</td>
        </tr>
      ))}
    </Table>
  )
}

function Containers({ containers }: { containers: Container[] }) {
  const t = useTextOf(texts)
  return (
    <Table caption label={t.containers} headers={t.containerColumns}>
      {containers.map(({ name, init, image, state, tone, restarts, ports, requests, limits }) => (
        <tr key={name}>
          <th scope="row">
            {name} {init && <small>{t.init}</small>}
          </th>
          <td className="image">
            <Link href={searchAddress({ q: `image:"${image}"` })} title={t.searchImage}>
              {image}
            </Link>
          </td>
          <td>
            <Pill state={state} tone={tone ?? 'idle'} />
          </td>
          <td className="number">{restarts}</td>
          <td>{ports.join(', ')}</td>
          <td>{requests}</td>
          <td>{limits}</td>
        </tr>
      ))}
    </Table>
  )
}

function Ports({ ports }: { ports: Port[] }) {
  const t = useTextOf(texts)
  return (
    <Table caption label={t.ports} headers={t.portColumns}>
      {ports.map(({ name, port, target }) => (
        <tr key={port}>
          <th scope="row">{name || '—'}</th>
          <td>{port}</td>
          <td>{target}</td>
        </tr>
      ))}
    </Table>
  )
}
