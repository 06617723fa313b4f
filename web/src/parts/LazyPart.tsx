// Parts of the page whose code is loaded when they are first rendered.
import { createElement, lazy, useEffect, type ComponentProps, type ComponentType, type FunctionComponent, type ReactNode } from 'react'
import { isServerReachable } from '../api/client'
import { UNREACHABLE_EVENT } from '../api/connection'
import { useIsConnectionLost, useOnConnectionRestored } from '../api/useConnection'
import { useText } from '../text'
import { ErrorBoundary, LoadError, useOnAddressChange } from './ErrorBoundary'
import { renewable } from './renewable'

// As in the type of React's `lazy`, because TypeScript infers a component's properties only with `any`.
type Part = ComponentType<any>

interface PartOptions<T extends Part> {
  /** Surrounds the message that the part could not be loaded. */
  Frame?: ComponentType<ComponentProps<NoInfer<T>> & { children: ReactNode }>
  /** True for a whole view: without it, there is no input that reloading the page would lose. */
  isView?: boolean
}

/** Shows its content without anything around it. */
const NoFrame = ({ children }: { children: ReactNode }) => <>{children}</>

/**
 * A component whose code is loaded when it is first rendered. `lazy` of React never loads again after a failure. This component shows a failure
 * in its place and loads again when the connection is restored, when the address changes, and at the user's request.
 */
export function lazyPart<T extends Part>(
  load: () => Promise<{ default: T }>,
  { Frame = NoFrame, isView = false }: PartOptions<T> = {},
): (props: ComponentProps<T>) => ReactNode {
  const part = renewable((onFailure) =>
    lazy(() =>
      load().catch((error: unknown) => {
        onFailure()
        // The connection is checked, so that the page notices when it is restored.
        window.dispatchEvent(new Event(UNREACHABLE_EVENT))
        throw new LoadError(String(error), { cause: error })
      }),
    ),
  )
  /** True if the last attempt was made because the connection was restored. */
  let isAfterReconnection = false
  return function LazyPart(props) {
    return (
      <ErrorBoundary
        catches={(error) => error instanceof LoadError}
        fallback={({ count }, retry) => {
          const onRetry = (afterReconnection: boolean) => {
            isAfterReconnection = afterReconnection
            part.renew()
            retry()
          }
          const message = <LoadFailure isRepeated={count > 1} reloadsPage={isView && isAfterReconnection} onRetry={onRetry} onLeave={part.renew} />
          return createElement<object>(Frame as unknown as FunctionComponent<object>, props, message)
        }}
      >
        {() => createElement<object>(part.current() as unknown as FunctionComponent<object>, props)}
      </ErrorBoundary>
    )
  }
}

interface LoadFailureProps {
  isRepeated: boolean
  /** Reloads the page if the server responds. */
  reloadsPage: boolean
  onRetry: (afterReconnection: boolean) => void
  onLeave: () => void
}

/**
 * Message that code could not be loaded. A second failure can be permanent for this page: some browsers keep the failure of a module, and a newer
 * version of the server has other files. Then the page is reloaded.
 */
function LoadFailure({ isRepeated, reloadsPage, onRetry, onLeave }: LoadFailureProps) {
  const t = useText()
  const isLost = useIsConnectionLost()
  useOnConnectionRestored(() => onRetry(true))
  useOnAddressChange(() => onRetry(false))
  useEffect(() => {
    if (reloadsPage) void isServerReachable().then((isReachable) => isReachable && window.location.reload())
    // A part that is opened again, such as a dialog, is loaded again.
    return onLeave
  }, [])
  return (
    <p role="alert">
      {isLost ? t.partNotLoadedOffline : t.partNotLoaded}{' '}
      <button type="button" onClick={() => (isRepeated && !isLost ? window.location.reload() : onRetry(false))}>
        {t.retry}
      </button>
    </p>
  )
}
