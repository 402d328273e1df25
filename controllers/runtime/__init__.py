"""The process that every control loop runs in: watch, store, queue, reconcile, elect, apply, report.

Loops plug in through :mod:`controllers.runtime.loop`; nothing here knows what a pool or a split is.
"""
