"""The environment of what mpirun starts in tests."""

import atexit
import os
import shutil
import tempfile

# Open MPI keeps files in a folder of its user, which the last mpirun deletes. Another that begins just then finds it
# gone, so each test has a folder of its own.
FOLDER = tempfile.mkdtemp(prefix="mpi-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
# Where the tests run there may be fewer processors than ranks, and no other user than root.
VARIABLES = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
             "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_orte_tmpdir_base": FOLDER}
ENVIRONMENT = os.environ | VARIABLES
