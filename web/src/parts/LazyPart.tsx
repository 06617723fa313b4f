// Parts of the page whose code is loaded when they are first rendered.
import { createElement, lazy, useEffect, useState, type ComponentProps, type ComponentType, type FunctionComponent, type ReactNode } from 'react'
import { isServerReachable } from '../api/client'
import { UNREACHABLE_EVENT } from '../api/connection'
import { useIsConnectionLost, useOnConnectionRestored } from '../api/useConnection'
import { useText } from '../text'
import { ErrorBoundary, LoadError, useOnAddressChange } from './ErrorBoundary'
import { failedFileOf, isFileMissing, moduleLoader } from './moduleLoader'
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
 * A component whose code is loaded when it is first rendered: `select` returns it from the module that `load` imports. `lazy` of React never loads
 * again after a failure. This component shows a failure in its place and loads again when the connection is restored, when the address changes,
 * and at the user's request.
 */
export function lazyPart<M, T extends Part>(
  load: () => Promise<M>,
  select: (module: M) => T,
  { Frame = NoFrame, isView = false }: PartOptions<T> = {},
): (props: ComponentProps<T>) => ReactNode {
  const loadModule = moduleLoader(load)
  const part = renewable((onFailure) =>
    lazy(() =>
      loadModule().then(
        (module) => ({ default: select(module) }),
        (error: unknown) => {
          onFailure()
          // The connection is checked, so that the page notices when it is restored.
          window.dispatchEvent(new Event(UNREACHABLE_EVENT))
          throw new LoadError(error, failedFileOf(error))
        },
      ),
    ),
  )
  /** True if the last attempt was made because the connection was restored. */
  let isAfterReconnection = false
  return function LazyPart(props) {
    return (
      <ErrorBoundary
        catches={(error) => error instanceof LoadError}
        fallback={({ error, count }, retry) => {
          const onRetry = (afterReconnection: boolean) => {
            isAfterReconnection = afterReconnection
            part.renew()
            retry()
          }
          const file = error instanceof LoadError ? error.file : undefined
          const message = <LoadFailure key={count} file={file} isRepeated={count > 1} reloadsPage={isView && isAfterReconnection} onRetry={onRetry} onLeave={part.renew} />
          return createElement<object>(Frame as unknown as FunctionComponent<object>, props, message)
        }}
      >
        {() => createElement<object>(part.current() as unknown as FunctionComponent<object>, props)}
      </ErrorBoundary>
    )
  }
}

interface LoadFailureProps {
  /** URL of the file that failed, if the browser names it. */
  file: string | undefined
  isRepeated: boolean
  /** Reloads the page if the server responds. */
  reloadsPage: boolean
  onRetry: (afterReconnection: boolean) => void
  onLeave: () => void
}

/**
 * Message that code could not be loaded, with a button that loads it again. A repeated failure can be permanent for this page, because browsers keep
 * the failures of the modules that the code imports, and another version of the server has other files: then the message offers to reload the page.
 * The address has the state of the view.
 */
function LoadFailure({ file, isRepeated, reloadsPage, onRetry, onLeave }: LoadFailureProps) {
  const t = useText()
  const isLost = useIsConnectionLost()
  const [isReplaced, setIsReplaced] = useState(false)
  useOnConnectionRestored(() => onRetry(true))
  useOnAddressChange(() => onRetry(false))
  useEffect(() => {
    if (reloadsPage) void isServerReachable().then((isReachable) => isReachable && window.location.reload())
    if (file !== undefined) void isFileMissing(file).then(setIsReplaced)
    // A part that is opened again, such as a dialog, is loaded again.
    return onLeave
  }, [])
  return (
    <p role="alert">
      {isLost ? t.partNotLoadedOffline : isReplaced ? t.partReplaced : t.partNotLoaded}{' '}
      {!isReplaced && (
        <button type="button" onClick={() => onRetry(false)}>
          {t.retry}
        </button>
      )}{' '}
      {(isReplaced || isRepeated) && !isLost && (
        <button type="button" onClick={() => window.location.reload()}>
          {t.reloadPage}
        </button>
      )}
    </p>
  )
}
